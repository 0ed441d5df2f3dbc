//! Rank and number of processes, and the nodes of all ranks.

use std::sync::OnceLock;

/// Environment variables in which launchers pass the rank and the number of processes.
const LAUNCHERS: [(&str, &str); 4] = [
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// The processes of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Crew {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The client number of each rank in the topology, where known.
    pub(crate) clients: Vec<Option<u32>>,
    /// How many programs of the job started before this one, modulo [`ROUND`].
    pub(crate) run: u32,
}

/// After this many runs the plan starts over, so that no process has to replay a long history.
pub(crate) const ROUND: u32 = 64;

static MPI: OnceLock<Crew> = OnceLock::new();

/// Sets the ranks from MPI, which take precedence over the launcher's variables.
#[cfg(not(feature = "wrap"))]
pub(crate) fn set_from_mpi(crew: Crew) {
    let _ = MPI.set(crew);
}

/// The ranks from MPI or from the launcher; `None` if unknown.
pub(crate) fn crew() -> Option<&'static Crew> {
    static LAUNCHED: OnceLock<Option<Crew>> = OnceLock::new();
    MPI.get().or_else(|| LAUNCHED.get_or_init(|| launched(|name| std::env::var(name).ok())).as_ref())
}

fn launched(variable: impl Fn(&str) -> Option<String>) -> Option<Crew> {
    let number = |name| variable(name)?.parse::<u32>().ok();
    LAUNCHERS.iter().find_map(|(rank, size)| {
        let (rank, size) = (number(rank)?, number(size)?);
        // A larger number is not a job, and too large for a table.
        let run = number("SLURM_STEP_ID").unwrap_or(0) % ROUND;
        (rank < size && size <= 1 << 24).then(|| Crew { rank, size, clients: vec![None; size as usize], run })
    })
}

/// The name of this node, without its domain.
pub(crate) fn host() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the length is that of the buffer minus one, so the last byte stays zero.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let whole = String::from_utf8_lossy(&name[..end]).into_owned();
    whole.split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_read_from_launcher_variables() {
        let from = |pairs: &[(&str, &str)]| {
            let find =
                |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            launched(find).map(|crew| (crew.rank, crew.size + 1000 * crew.run))
        };
        let step = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "65")];
        assert_eq!(from(&step), Some((1, 1002)), "the second step of another round");
        assert_eq!(from(&[("PMI_RANK", "3"), ("PMI_SIZE", "4")]), Some((3, 4)));
        assert_eq!(from(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")]), Some((0, 2)));
        assert_eq!(from(&[("SLURM_PROCID", "1")]), None);
        assert_eq!(from(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]), None);
        assert_eq!(from(&[("PMI_RANK", "x"), ("PMI_SIZE", "4")]), None);
        assert_eq!(from(&[]), None);
    }
}
