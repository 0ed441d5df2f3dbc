//! The job processes and their messages.

use super::plan::{JobPlan, Plan, Shape};
use super::worker::{Done, Word};
use crate::failure::{Failure, Outcome};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(20);
/// Messages that wait to be processed; when the queue is full, the jobs wait.
const QUEUE: usize = 256;

/// The task of the jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Write,
    Verify,
}

/// The running jobs. Dropping it kills them.
pub(super) struct Crew {
    members: Vec<Member>,
    messages: Receiver<(usize, Option<Word>)>,
}

struct Member {
    label: &'static str,
    process: Child,
    bytes: u64,
    done: Option<Done>,
}

impl Crew {
    /// Starts a process for each job.
    pub(super) fn start(plan: &Plan, service: &str, task: Task) -> Outcome<Crew> {
        let (sender, messages) = sync_channel(QUEUE);
        let mut crew = Crew { members: Vec::new(), messages };
        for (number, job) in plan.jobs.iter().enumerate() {
            let mut process = spawn(job, service, task)?;
            let stdout = process.stdout.take();
            crew.members.push(Member { label: job.label, process, bytes: 0, done: None });
            let sender = sender.clone();
            std::thread::spawn(move || stdout.map(|stdout| relay(number, stdout, &sender)));
        }
        Ok(crew)
    }

    /// Waits briefly for messages of the jobs and processes one.
    pub(super) fn poll(&mut self) -> Outcome {
        match self.messages.recv_timeout(POLL) {
            Ok((number, word)) => self.process(number, word),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    /// Processes all messages that have arrived.
    pub(super) fn catch_up(&mut self) -> Outcome {
        while let Ok((number, word)) = self.messages.try_recv() {
            self.process(number, word)?;
        }
        Ok(())
    }

    fn process(&mut self, number: usize, word: Option<Word>) -> Outcome {
        let member = &mut self.members[number];
        let label = member.label;
        match word {
            Some(Word::Progress(bytes)) => member.bytes = bytes,
            Some(Word::Done(done)) => {
                member.bytes = done.bytes;
                member.done = Some(done);
            }
            Some(Word::Trouble(text)) => return Err(Failure::Failed(format!("job {label}: {text}"))),
            None if member.done.is_none() => {
                return Err(Failure::Failed(format!(
                    "job {label} ended without a report: run the demo again"
                )));
            }
            None => {}
        }
        Ok(())
    }

    /// Bytes of each job so far.
    pub(super) fn bytes(&self) -> impl Iterator<Item = u64> {
        self.members.iter().map(|member| member.bytes)
    }

    /// Bytes of all jobs so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.bytes().sum()
    }

    pub(super) fn is_done(&self) -> bool {
        self.members.iter().all(|member| member.done.is_some())
    }

    /// The result of each job.
    pub(super) fn results(&self) -> Vec<Done> {
        self.members.iter().map(|member| member.done.clone().unwrap_or_default()).collect()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &mut self.members {
            // The process may have ended already.
            let _ = member.process.kill();
            let _ = member.process.wait();
        }
    }
}

fn spawn(job: &JobPlan, service: &str, task: Task) -> Outcome<Child> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
    let mut command = Command::new(&program);
    command.arg("demo-job").args(["--service", service, "--label", job.label]);
    command.args(["--shape", if job.shape == Shape::Shared { "shared" } else { "own" }]);
    command.args(["--block", &job.block.to_string(), "--share", &job.share.to_string()]);
    // The user's own forebay.toml must not configure the demo.
    command.args(["--config", "/dev/null"]);
    if task == Task::Verify {
        command.arg("--verify");
    }
    command
        .env("FOREBAY_JOB_ID", job.label)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.spawn().map_err(|error| Failure::local("start", &program, &error))
}

/// Forwards the messages of a job, and `None` at its end.
fn relay(number: usize, stdout: ChildStdout, sender: &SyncSender<(usize, Option<Word>)>) {
    let lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let words = lines.filter_map(|line| serde_json::from_str(&line).ok());
    for word in words.map(Some).chain([None]) {
        if sender.send((number, word)).is_err() {
            return;
        }
    }
}
