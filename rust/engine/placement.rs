// SPDX-License-Identifier: GPL-2.0

//! Which CPU a lane is on, and which lane a CPU submits to. Pure: tested on the host.

/// How many lanes a connection has that is to have `wanted`, on `cpus` CPUs: 0 is one for each.
pub(crate) fn lanes(wanted: u32, cpus: u32) -> u32 {
    match wanted {
        0 => cpus.max(1),
        n => n,
    }
}

/// The number among the `cpus` CPUs of that which lane `lane` is on: they are dealt out in turn.
pub(crate) fn cpu_of(lane: u32, cpus: u32) -> u32 {
    lane % cpus.max(1)
}

/// The lane that submitter `submitter`, which runs on CPU [`cpu_of`] of its number, uses. One of its
/// own CPU if there is one; submitters of a CPU are dealt out over the lanes of that.
pub(crate) fn lane_of(submitter: u32, lanes: u32, cpus: u32) -> u32 {
    let (lanes, cpus) = (lanes.max(1), cpus.max(1));
    let cpu = submitter % cpus;
    if lanes <= cpus {
        return cpu % lanes;
    }
    // CPUs before the remainder have one lane more.
    let here = lanes / cpus + u32::from(cpu < lanes % cpus);
    cpu + cpus * (submitter / cpus % here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submitters_are_on_the_cpu_of_their_lane() {
        for cpus in 1..9 {
            for lanes in 1..20 {
                let mut used = vec![0; lanes as usize];
                for submitter in 0..64 {
                    let lane = lane_of(submitter, lanes, cpus);
                    assert!(lane < lanes);
                    used[lane as usize] += 1;
                    if lanes >= cpus {
                        assert_eq!(cpu_of(lane, cpus), cpu_of(submitter, cpus));
                    }
                }
                // Nobody is left out, and the load is even but for what does not divide.
                assert!(used.iter().all(|n| *n > 0), "{cpus} {lanes} {used:?}");
            }
        }
    }

    #[test]
    fn numbers_at_the_edges() {
        assert_eq!(lanes(0, 4), 4);
        assert_eq!(lanes(0, 0), 1);
        assert_eq!(lanes(3, 4), 3);
        assert_eq!(cpu_of(5, 0), 0);
        assert_eq!(lane_of(7, 0, 0), 0);
        assert_eq!(lane_of(3, 1, 2), 0);
    }
}
