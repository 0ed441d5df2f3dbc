//! Buffered and direct writes.

use crate::human;
use forebay_wire::RouteStatus;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// How a server routed writes.
#[derive(Serialize)]
pub(crate) struct Routed {
    #[serde(flatten)]
    status: RouteStatus,
    /// Bytes buffered per byte written: the load and the wear of the buffer's device.
    write_amplification: f64,
}

impl From<RouteStatus> for Routed {
    fn from(status: RouteStatus) -> Routed {
        let write_amplification = amplification(status.buffered, status.buffered + status.direct);
        Routed { status, write_amplification }
    }
}

/// Bytes buffered per byte written; 0 if nothing was written.
pub(crate) fn amplification(buffered: u64, written: u64) -> f64 {
    if written == 0 { 0.0 } else { buffered as f64 / written as f64 }
}

impl fmt::Display for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RouteStatus { mode, pipeline, bypass, buffered, direct, waits, waited, waiting, .. } =
            &self.status;
        let pipeline = if *pipeline { "" } else { ", no pipeline" };
        let bypass = if *bypass { ", direct if the buffer is full" } else { "" };
        write!(
            f,
            "  route     {mode}{pipeline}{bypass}: {} buffered, {} direct, write amplification {:.2}",
            human::size(*buffered),
            human::size(*direct),
            self.write_amplification
        )?;
        if *waits > 0 {
            let (times, time) =
                (human::counted(*waits, "wait"), human::duration(Duration::from_nanos(*waited)));
            write!(f, "; {times} for space, {time} in total")?;
        }
        if !waiting.is_empty() {
            let who = |(job, writers): &(String, u32)| {
                format!("job {job} ({})", human::counted(u64::from(*writers), "writer"))
            };
            write!(f, "; now {}", waiting.iter().map(who).collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_amplification_and_waits_are_shown() {
        for (buffered, direct, waits, shown) in [
            (0, 0, 0, "  route     traffic: 0 B buffered, 0 B direct, write amplification 0.00"),
            (
                1 << 20,
                3 << 20,
                0,
                "  route     traffic: 1 MiB buffered, 3 MiB direct, write amplification 0.25",
            ),
            (
                1 << 20,
                0,
                2,
                "  route     traffic: 1 MiB buffered, 0 B direct, write amplification 1.00; 2 waits for space, 3 s in total; \
                 now job 7 (2 writers), job b (1 writer)",
            ),
        ] {
            let (mode, waited) = ("traffic".to_owned(), 3_000_000_000);
            let (decided, indexed, extents, index) = (0, 0, 0, 0);
            let waiting =
                [("7".to_owned(), 2), ("b".to_owned(), 1)].into_iter().take(waits as usize).collect();
            let status = RouteStatus {
                mode,
                pipeline: true,
                bypass: false,
                buffered,
                direct,
                waits,
                waited,
                waiting,
                decided,
                indexed,
                extents,
                index,
            };
            assert_eq!(
                Routed::from(status).to_string().replace(".0 MiB", " MiB").replace("3.0 s", "3 s"),
                shown
            );
        }
    }
}
