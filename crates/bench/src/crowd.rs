//! A crowd: processes that do the same work side by side, each in a directory of its own.
//!
//! The leader starts the members, waits for a line, has all members begin each part at the same moment, and prints the
//! time until the last of them has done it.

use crate::Outcome;
use crate::near;
use crate::plan::{KIB, MIB};
use crate::results::timed;
use crate::steps::{READY, WORD, paths, wait};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A part of a crowd's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Writes a new file in requests of 1 MiB.
    Large,
    /// Writes a new file in requests of 4 KiB.
    Small,
    /// Creates empty files.
    Create,
    Stat,
    Unlink,
    /// Creates files, writes 4 KiB to each and closes it.
    WriteFiles,
    /// Opens, reads, compares and closes them.
    ReadFiles,
}

pub(crate) const PARTS: [Part; 7] =
    [Part::Large, Part::Small, Part::Create, Part::Stat, Part::Unlink, Part::WriteFiles, Part::ReadFiles];

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Large => "write 1 MiB",
            Part::Small => "write 4 KiB",
            Part::Create => "create",
            Part::Stat => "stat",
            Part::Unlink => "unlink",
            Part::WriteFiles => "open, write 4 KiB, close",
            Part::ReadFiles => "open, read 4 KiB, close",
        })
    }
}

/// The work of a crowd.
pub struct Crowd {
    /// Its directory, which it makes and removes.
    pub dir: PathBuf,
    /// How many processes.
    pub processes: usize,
    /// Requests of 1 MiB by each process.
    pub large: usize,
    /// Requests of 4 KiB by each process.
    pub small: usize,
    /// Names, and small files, by each process.
    pub names: usize,
    /// How often everything is done; the last time counts.
    pub passes: usize,
}

/// A process of a crowd, seen by the leader.
struct Member {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Crowd {
    pub(crate) fn words(&self, word: &str, dir: &Path) -> Vec<String> {
        let numbers = [self.processes, self.large, self.small, self.names, self.passes];
        let words = [word.to_owned(), dir.display().to_string()];
        words.into_iter().chain(numbers.map(|number| number.to_string())).collect()
    }

    /// Runs the crowd within another command (`env` has no effect), and returns the time of each part.
    pub(crate) fn run(&self, mut within: Command) -> Outcome<Vec<Duration>> {
        within.arg(std::env::current_exe()?).arg(WORD).args(self.words("crowd", &self.dir));
        let child = within.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = child_output(child, READY)?;
        let text = String::from_utf8(output)?;
        let took = text.split_whitespace().map(|word| Ok(Duration::from_nanos(word.parse()?)));
        let took = took.collect::<Outcome<Vec<_>>>()?;
        if took.len() == PARTS.len() { Ok(took) } else { Err(format!("{} times", took.len()).into()) }
    }

    fn member(&self, number: usize) -> Outcome<Member> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(WORD).args(self.words("member", &self.dir.join(format!("p{number}"))));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut member = Member { child, output };
        if member.line()? != READY {
            return Err("a process of the crowd did not start".into());
        }
        Ok(member)
    }

    /// The leader itself.
    pub(crate) fn lead(&self) -> Outcome {
        std::fs::create_dir(&self.dir)?;
        let mut members =
            (0..self.processes).map(|number| self.member(number)).collect::<Outcome<Vec<_>>>()?;
        wait()?;
        let mut took = Vec::new();
        for _ in 0..self.passes {
            took.clear();
            for _ in PARTS {
                members.iter_mut().try_for_each(Member::go)?;
                let times = members.iter_mut().map(Member::nanos).collect::<Outcome<Vec<_>>>()?;
                took.push(times.into_iter().max().unwrap_or_default().to_string());
            }
        }
        for Member { mut child, .. } in members {
            drop(child.stdin.take());
            let status = child.wait()?;
            if !status.success() {
                return Err(format!("a process of the crowd ended with {status}").into());
            }
        }
        std::fs::remove_dir(&self.dir)?;
        Ok(writeln!(stdout(), "{}", took.join(" "))?)
    }

    /// A member itself: its directory is the crowd's.
    pub(crate) fn follow(&self) -> Outcome {
        std::fs::create_dir(&self.dir)?;
        let mut out = stdout();
        writeln!(out, "{READY}")?;
        out.flush()?;
        let work = Material::of(self);
        for _ in 0..self.passes {
            for part in PARTS {
                if stdin().read_line(&mut String::new())? == 0 {
                    return Err("the leader of the crowd is gone".into());
                }
                let (done, took) = timed(|| work.perform(part));
                done?;
                writeln!(out, "{}", took.as_nanos())?;
                out.flush()?;
            }
            work.clear()?;
        }
        Ok(std::fs::remove_dir(&self.dir)?)
    }
}

impl Member {
    fn go(&mut self) -> Outcome {
        Ok(self.child.stdin.as_mut().ok_or("its input is closed")?.write_all(b"go\n")?)
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn nanos(&mut self) -> Outcome<u64> {
        let line = self.line()?;
        line.parse().map_err(|_| "a process of the crowd failed".into())
    }
}

/// Tells a child that said it is ready to go on, and returns its output. A failure has what it said.
fn child_output(mut child: Child, ready: &str) -> Outcome<Vec<u8>> {
    let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    output.read_line(&mut line)?;
    if line.trim() == ready
        && let Some(mut input) = child.stdin.take()
    {
        input.write_all(b"go\n")?;
    }
    let mut rest = Vec::new();
    output.read_to_end(&mut rest)?;
    let ended = child.wait_with_output()?;
    match ended.status.success() {
        true => Ok(rest),
        false => Err(format!("{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr).trim()).into()),
    }
}

/// What a member works with, made before time counts.
struct Material {
    large: (PathBuf, Vec<u8>, usize),
    small: (PathBuf, Vec<u8>, usize),
    names: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Material {
    fn of(crowd: &Crowd) -> Material {
        let (file, bytes) = (|name: &str| crowd.dir.join(name), |len| vec![near::BYTE; len]);
        Material {
            large: (file("large"), bytes(MIB), crowd.large),
            small: (file("small"), bytes(4 * KIB), crowd.small),
            names: paths(&crowd.dir, "n", crowd.names),
            files: paths(&crowd.dir, "f", crowd.names),
        }
    }

    fn perform(&self, part: Part) -> Outcome {
        let content = &self.small.1;
        let mut read = Vec::with_capacity(content.len());
        match part {
            Part::Large => write(&self.large)?,
            Part::Small => write(&self.small)?,
            Part::Create => self.names.iter().try_for_each(|path| File::create_new(path).map(drop))?,
            Part::Stat => self.names.iter().try_for_each(|path| path.metadata().map(drop))?,
            Part::Unlink => self.names.iter().try_for_each(std::fs::remove_file)?,
            Part::WriteFiles => {
                let make =
                    |path: &PathBuf| File::create_new(path).and_then(|mut file| file.write_all(content));
                self.files.iter().try_for_each(make)?;
            }
            Part::ReadFiles => {
                for path in &self.files {
                    read.clear();
                    File::open(path)?.read_to_end(&mut read)?;
                    if read != *content {
                        return Err(format!("read-back mismatch in {}", path.display()).into());
                    }
                }
            }
        }
        Ok(())
    }

    fn clear(&self) -> Outcome {
        let files = [&self.large.0, &self.small.0].into_iter().chain(&self.files);
        Ok(files.into_iter().try_for_each(std::fs::remove_file)?)
    }
}

fn write((path, chunk, count): &(PathBuf, Vec<u8>, usize)) -> Outcome {
    let mut file = File::create_new(path)?;
    Ok((0..*count).try_for_each(|_| file.write_all(chunk))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_does_every_part_twice_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let crowd =
            Crowd { dir: dir.path().to_owned(), processes: 1, large: 2, small: 3, names: 4, passes: 2 };
        let material = Material::of(&crowd);
        for _ in 0..crowd.passes {
            for part in PARTS {
                material.perform(part).unwrap_or_else(|error| panic!("{part}: {error}"));
            }
            let len = |name: &str| dir.path().join(name).metadata().expect("it is there").len();
            assert_eq!((len("large"), len("small"), len("f3")), (2 << 20, 12 << 10, 4 << 10));
            material.clear().expect("all files are there");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn changed_bytes_of_small_files_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let crowd =
            Crowd { dir: dir.path().to_owned(), processes: 1, large: 0, small: 0, names: 2, passes: 1 };
        let material = Material::of(&crowd);
        material.perform(Part::WriteFiles).expect("files");
        std::fs::write(dir.path().join("f1"), b"other").expect("a file");
        let error = material.perform(Part::ReadFiles).expect_err("other bytes").to_string();
        assert!(error.contains("read-back mismatch") && error.contains("f1"), "{error}");
    }
}
