//! The temporary directory of the demo with a store and a server, and its removal.

use super::plan::Plan;
use crate::failure::{Failure, Outcome};
use crate::server_process::ServerProcess;
use forebay_wire::RecoverySummary;
use tempfile::TempDir;

/// The directory and the server.
pub(super) struct Stage {
    server_process: ServerProcess,
    service: String,
    /// Declared last, so that it is dropped after the server.
    _dir: TempDir,
}

impl Stage {
    pub(super) fn build(plan: &Plan) -> Outcome<Stage> {
        let dir = tempfile::Builder::new().prefix("forebay-demo-").tempdir();
        let dir =
            dir.map_err(|error| Failure::local("make a directory in", &std::env::temp_dir(), &error))?;
        let server_process = ServerProcess::new(dir.path(), Some(plan.capacity));
        Ok(Stage { service: server_process.service(), server_process, _dir: dir })
    }

    /// The server's address for the jobs.
    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Starts a server process, waits until it serves, and returns its recovery report.
    pub(super) fn start_server(&mut self) -> Outcome<RecoverySummary> {
        self.server_process.start()
    }

    /// Kills the server with SIGKILL.
    pub(super) fn kill_server(&mut self) -> Outcome {
        self.server_process.kill()
    }

    /// Stops the server and removes everything.
    pub(super) fn remove(mut self) -> Outcome {
        self.server_process.clear()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // `remove` reports errors; dropping ignores them.
        let _ = self.server_process.clear();
    }
}
