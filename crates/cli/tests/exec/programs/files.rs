//! A program in Rust that uses files as Rust's standard library does: files DIRECTORY.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn main() -> std::io::Result<()> {
    let root = PathBuf::from(std::env::args_os().nth(1).expect("a directory"));
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("a/b/c"))?;
    let mut out = BufWriter::new(File::create(at("a/lines"))?);
    (0..5000).try_for_each(|i| writeln!(out, "line {i}"))?;
    out.into_inner()?.sync_all()?;
    println!("{}", BufReader::new(File::open(at("a/lines"))?).lines().map_while(Result::ok).filter(|l| l.ends_with('7')).count());
    let mut file = OpenOptions::new().read(true).write(true).open(at("a/lines"))?;
    file.write_all_at(b"LINE", 7)?;
    file.seek(SeekFrom::End(-5))?;
    let mut tail = String::new();
    file.read_to_string(&mut tail)?;
    println!("{tail:?} {}", file.metadata()?.len());
    file.set_len(10)?;
    println!("{:?} {:?}", fs::read_to_string(at("a/lines"))?, OpenOptions::new().write(true).create_new(true).open(at("a/lines")).map_err(|e| e.kind()).err());
    fs::set_permissions(at("a/lines"), fs::Permissions::from_mode(0o640))?;
    symlink("lines", at("a/link"))?;
    fs::hard_link(at("a/lines"), at("a/hard"))?;
    fs::rename(at("a/hard"), at("a/b/moved"))?;
    println!("{:o} {} {:?}", fs::metadata(at("a/link"))?.mode(), fs::metadata(at("a/b/moved"))?.nlink(), fs::read_link(at("a/link"))?);
    println!("{}", fs::copy(at("a/lines"), at("a/copy"))?);
    let names: BTreeMap<_, _> = fs::read_dir(at("a"))?.flatten().map(|e| (e.file_name(), e.file_type().map(|t| t.is_dir()).ok())).collect();
    println!("{names:?}");
    let workers: Vec<_> = (0..4).map(|i| (i, at(&format!("w{i}")))).map(|(i, path)| std::thread::spawn(move || fs::write(&path, vec![i; 100_000]).and_then(|()| fs::read(path)).map(|b| b.len()))).collect();
    println!("{:?}", workers.into_iter().map(|w| w.join().map(|r| r.unwrap_or(0)).unwrap_or(0)).collect::<Vec<_>>());
    let child = Command::new("cat").stdin(File::open(at("a/copy"))?).stdout(File::create(at("piped"))?).stderr(Stdio::null()).current_dir(at("a")).status()?;
    println!("{child} {:?}", fs::read(at("piped"))?);
    println!("{:?} {:?}", fs::canonicalize(at("a/../a/link"))?.file_name(), fs::read(at("none")).map_err(|e| e.kind()).err());
    println!("{:?}", fs::remove_dir(at("a")).map_err(|e| e.kind()).err());
    fs::remove_dir_all(at("a"))?;
    println!("{}", at("a").exists());
    Ok(())
}
