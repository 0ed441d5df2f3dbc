//! Small programs of our own, each a process: they copy in memory, create names, create small files.
//!
//! They know nothing of Forebay: with the preload library or on a mount, they are unmodified programs. They
//! report that they are ready, wait for a line, and print the duration of the work that follows.

use crate::Outcome;
use crate::crowd::Crowd;
use crate::near;
use crate::plan::{Crew, Fio, How, Party, Size, Work};
use crate::results::{Results, timed};
use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The work of such a program.
pub enum Step {
    /// Copies chunks one after the other into touched memory.
    Copy {
        /// Bytes of a chunk.
        chunk: usize,
        /// How many.
        count: usize,
    },
    /// Creates empty files in a new directory, stats and removes them.
    Names {
        /// The directory.
        dir: PathBuf,
        /// How many.
        count: usize,
    },
    /// Creates files in a new directory, writes each and closes it; then reads and removes them, untimed.
    Small {
        /// The directory.
        dir: PathBuf,
        /// How many.
        count: usize,
        /// Bytes of each.
        bytes: usize,
    },
    /// Makes system calls that are not the C library's.
    RawCalls {
        /// How many.
        count: usize,
    },
    /// Leads a crowd.
    Crowd(Crowd),
    /// A process of a crowd.
    Member(Crowd),
}

/// The command-line argument that starts such a program.
pub(crate) const WORD: &str = "bench-step";

impl Step {
    fn words(&self) -> Vec<String> {
        match self {
            Step::Copy { chunk, count } => vec!["copy".into(), chunk.to_string(), count.to_string()],
            Step::Names { dir, count } => {
                vec!["names".into(), dir.display().to_string(), count.to_string()]
            }
            Step::Small { dir, count, bytes } => {
                vec!["small".into(), dir.display().to_string(), count.to_string(), bytes.to_string()]
            }
            Step::RawCalls { count } => vec!["raw-calls".into(), count.to_string()],
            Step::Crowd(crowd) => crowd.words("crowd", &crowd.dir),
            Step::Member(crowd) => crowd.words("member", &crowd.dir),
        }
    }

    /// Starts it as a process, as arguments of another command (`env` has no effect).
    fn start(&self, mut within: Command) -> Outcome<Started> {
        within.arg(std::env::current_exe()?).arg(WORD).args(self.words());
        let mut child = within.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line)?;
        if line.trim() != READY {
            return Err(format!("{WORD} {} did not start", self.words().join(" ")).into());
        }
        Ok(Started { child, output })
    }
}

pub(crate) const READY: &str = "ready";

/// A started program that waits for its line.
struct Started {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Started {
    fn go(&mut self) -> Outcome {
        Ok(self.child.stdin.as_mut().ok_or("its input is closed")?.write_all(b"go\n")?)
    }

    /// The duration of each of its parts.
    fn took(mut self) -> Outcome<Vec<Duration>> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("{WORD} ended with {status}").into());
        }
        text.split_whitespace().map(|word| Ok(Duration::from_nanos(word.parse()?))).collect()
    }
}

/// Copies in memory by one process and by two, as a reference for fio's writes.
pub(crate) fn copies(size: Size, results: &mut Results) -> Outcome {
    for crew in [Crew::One, Crew::FileEach] {
        let step = Step::Copy { chunk: size.chunk, count: size.count / crew.processes() };
        let start = || step.start(Command::new("env"));
        let mut crowd = (0..crew.processes()).map(|_| start()).collect::<Outcome<Vec<_>>>()?;
        crowd.iter_mut().try_for_each(Started::go)?;
        let took = crowd.into_iter().map(Started::took).collect::<Outcome<Vec<_>>>()?;
        let longest = took.into_iter().flatten().max().ok_or("the copies took no time")?;
        let work = Work::Fio(Fio { how: How::Write, chunk: size.chunk, crew });
        results.moved(work, Party::Copy, size, longest);
    }
    Ok(())
}

/// Raw system calls by a program, run by another command.
pub(crate) fn raw_calls(within: Command, party: Party, count: usize, results: &mut Results) -> Outcome {
    let mut started = Step::RawCalls { count }.start(within)?;
    started.go()?;
    let took: Duration = started.took()?.into_iter().sum();
    results.cost(Work::RawCall, party, took.as_secs_f64() * 1e9 / count as f64);
    Ok(())
}

/// Bytes of a small file.
const SMALL: usize = 4 << 10;

/// Names and small files by a program, run by another command.
pub(crate) fn names(
    within: impl Fn() -> Command,
    dir: &Path,
    party: Party,
    count: usize,
    results: &mut Results,
) -> Outcome {
    let run = |step: Step| {
        let mut started = step.start(within())?;
        started.go()?;
        started.took()
    };
    let took = run(Step::Names { dir: dir.join("names"), count })?;
    for (work, took) in [Work::ProgramCreate, Work::ProgramStat, Work::ProgramUnlink].into_iter().zip(took) {
        results.done(work, party, count, took);
    }
    let took = run(Step::Small { dir: dir.join("small"), count, bytes: SMALL })?;
    took.into_iter().for_each(|took| results.done(Work::Small(SMALL), party, count, took));
    Ok(())
}

/// The program itself.
pub fn serve(step: &Step) -> Outcome {
    let took = match step {
        Step::Copy { chunk, count } => copy(*chunk, *count)?,
        Step::Names { dir, count } => make_names(dir, *count)?,
        Step::Small { dir, count, bytes } => make_files(dir, *count, *bytes)?,
        Step::RawCalls { count } => make_raw_calls(*count)?,
        Step::Crowd(crowd) => return crowd.lead(),
        Step::Member(crowd) => return crowd.follow(),
    };
    let words: Vec<String> = took.iter().map(|took| took.as_nanos().to_string()).collect();
    Ok(writeln!(stdout(), "{}", words.join(" "))?)
}

/// Reports that the preparation is done, and waits for a line.
pub(crate) fn wait() -> Outcome {
    let mut out = stdout();
    writeln!(out, "{READY}")?;
    out.flush()?;
    stdin().read_line(&mut String::new())?;
    Ok(())
}

fn copy(chunk: usize, count: usize) -> Outcome<Vec<Duration>> {
    let (source, mut target) = (vec![near::BYTE; chunk], vec![1; chunk * count]);
    wait()?;
    let ((), took) = timed(|| {
        for piece in target.chunks_exact_mut(chunk) {
            piece.copy_from_slice(black_box(&source));
        }
    });
    black_box(&target);
    Ok(vec![took])
}

/// This call is made by an instruction of its own.
fn make_raw_calls(count: usize) -> Outcome<Vec<Duration>> {
    wait()?;
    let ((), took) = timed(|| {
        for _ in 0..count {
            black_box(rustix::process::getppid());
        }
    });
    Ok(vec![took])
}

fn make_names(dir: &Path, count: usize) -> Outcome<Vec<Duration>> {
    std::fs::create_dir(dir)?;
    let paths = paths(dir, "f", count);
    wait()?;
    let (made, create) = timed(|| paths.iter().try_for_each(|path| File::create_new(path).map(drop)));
    let (asked, stat) = timed(|| paths.iter().try_for_each(|path| path.metadata().map(drop)));
    let (removed, unlink) = timed(|| paths.iter().try_for_each(std::fs::remove_file));
    made.and(asked).and(removed)?;
    std::fs::remove_dir(dir)?;
    Ok(vec![create, stat, unlink])
}

fn make_files(dir: &Path, count: usize, bytes: usize) -> Outcome<Vec<Duration>> {
    std::fs::create_dir(dir)?;
    let (paths, content) = (paths(dir, "f", count), vec![near::BYTE; bytes]);
    wait()?;
    let make = |path: &PathBuf| File::create_new(path).and_then(|mut file| file.write_all(&content));
    let (made, took) = timed(|| paths.iter().try_for_each(make));
    made?;
    for path in &paths {
        if std::fs::read(path)? != content {
            return Err(format!("read-back mismatch in {}", path.display()).into());
        }
        std::fs::remove_file(path)?;
    }
    std::fs::remove_dir(dir)?;
    Ok(vec![took])
}

pub(crate) fn paths(dir: &Path, prefix: &str, count: usize) -> Vec<PathBuf> {
    (0..count).map(|index| dir.join(format!("{prefix}{index}"))).collect()
}
