//! Whether this process is one of several ranks of a launcher. Pure.

/// Variables in which launchers pass the rank and the number of ranks. PALS and Flux use those of PMI too.
const LAUNCHERS: [(&str, &str); 4] = [
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    // A batch script has SLURM_PROCID too, but only processes started by `srun` have this count.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
];

/// One rank of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rank {
    pub(super) number: u32,
    pub(super) of: u32,
}

/// The rank of this process; `None` if it is alone.
pub(super) fn rank(get: impl Fn(&str) -> Option<String>) -> Option<Rank> {
    let number = |name| get(name).and_then(|text| text.trim().parse::<u32>().ok());
    let ranks =
        LAUNCHERS.iter().filter_map(|(rank, size)| Some(Rank { number: number(rank)?, of: number(size)? }));
    ranks.into_iter().find(|rank| rank.of > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_recognised_and_batch_scripts_are_not_launchers() {
        for (environment, expected) in [
            ("", None),
            ("PMI_RANK=2 PMI_SIZE=4", Some((2, 4))),
            ("PMI_RANK=0 PMI_SIZE=1", None),
            ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", Some((0, 2))),
            ("PALS_RANKID=7 PMI_RANK=7 PMI_SIZE=8", Some((7, 8))),
            ("SLURM_PROCID=0 SLURM_NTASKS=64", None),
            ("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=64", Some((3, 64))),
            ("PMI_RANK=x PMI_SIZE=4", None),
        ] {
            let get = |name: &str| {
                let mut pairs = environment.split(' ').filter_map(|pair| pair.split_once('='));
                pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
            };
            let expected = expected.map(|(number, of)| Rank { number, of });
            assert_eq!(rank(get), expected, "{environment}");
        }
    }
}
