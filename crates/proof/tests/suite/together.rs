//! A cluster as users see it: one tree through every server.

use forebay_client::blocking::Client;
use forebay_client::{Listing, OpenOptions};
use forebay_model::{Bytes, FileKind, ServerId, Striping};
use forebay_proof::{By, Fleet, Plan, pattern};
use forebay_server::Medium;
use std::collections::BTreeMap;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn fleet(count: u16) -> Fleet {
    Fleet::new(PROGRAM, count, Plan::new(Medium::Disk, Bytes::mib(64), Bytes::mib(4)))
}

fn read(client: &Client, path: &str) -> forebay_model::Result<Vec<u8>> {
    let file = client.open(path, OpenOptions::READ)?;
    let mut bytes = vec![0; file.stat()?.size as usize];
    let len = file.pread(0, &mut bytes)?;
    assert_eq!(len, bytes.len(), "{path}");
    Ok(bytes)
}

#[test]
fn files_of_one_directory_are_spread_evenly_and_seen_on_all_servers() {
    const FILES: usize = 2000;
    let fleet = fleet(4);
    let client = fleet.client(0, By::Unix);
    client.mkdir("/many", 0o755).unwrap();
    let mut made = BTreeMap::<ServerId, usize>::new();
    for number in 0..FILES {
        let file = client.open(format!("/many/f{number:05}"), OpenOptions::CREATE_NEW).unwrap();
        *made.entry(file.id().maker()).or_default() += 1;
        file.close().unwrap();
    }
    // 2,000 names deviate from a quarter by chance; 100,000 do so by less than 1 %.
    assert_eq!(made.len(), 4);
    assert!(made.values().all(|count| count.abs_diff(FILES / 4) < FILES / 16), "{made:?}");
    for number in 0..4 {
        let other = fleet.client(number, By::turn(number));
        for listing in [Listing::Names, Listing::Attributes] {
            let listed = other.read_dir("/many", listing).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
            let mut names: Vec<String> = listed.iter().map(|entry| entry.name.to_string()).collect();
            names.sort();
            assert_eq!(names, (0..FILES).map(|number| format!("f{number:05}")).collect::<Vec<_>>());
        }
    }
    let files: u64 = client.statfs().unwrap().files;
    assert!(files >= FILES as u64, "{files}");
}

#[test]
fn striped_bytes_form_one_file() {
    let fleet = fleet(3);
    let (local, remote) = (fleet.client(0, By::Unix), fleet.client(1, By::Tcp));
    local.mkdir("/striped", 0o755).unwrap();
    local.set_layout("/striped", Some(Striping { width: 0, stripe: 64 << 10 })).unwrap();
    for (name, len) in [("empty", 0), ("small", 100), ("edge", 64 << 10), ("large", 5_000_000)] {
        let path = format!("/striped/{name}");
        let data = pattern(7, len);
        let file = remote.open(&path, OpenOptions::CREATE).unwrap();
        file.pwrite(0, &data).unwrap();
        assert_eq!(local.stat(&path).unwrap().size, len as u64, "{name} while it is open");
        assert!(read(&local, &path).unwrap() == data, "{name}");
        file.close().unwrap();
        assert_eq!(local.stat(&path).unwrap().size, len as u64, "{name}");
        let (_, layout) = local.layout(&path).unwrap();
        assert_eq!(layout.unwrap().servers.len(), 3, "{name}");
    }
    let file = local.open("/striped/large", OpenOptions::WRITE).unwrap();
    file.truncate(1_000_001).unwrap();
    file.truncate(3_000_000).unwrap();
    let mut expected = pattern(7, 1_000_001);
    expected.resize(3_000_000, 0);
    assert!(read(&remote, "/striped/large").unwrap() == expected, "bytes beyond a truncation are zero");
    file.punch(100_000, 300_000).unwrap();
    expected[100_000..400_000].fill(0);
    assert!(read(&remote, "/striped/large").unwrap() == expected, "a hole is zero");
    let end = file.append(&pattern(8, 200_000)).unwrap();
    assert_eq!(end, 3_000_000);
    expected.extend(pattern(8, 200_000));
    assert!(read(&remote, "/striped/large").unwrap() == expected);
    file.sync().unwrap();
    file.close().unwrap();
    local.unlink("/striped/large").unwrap();
    assert!(remote.stat("/striped/large").is_err());
}

#[test]
fn renames_work_between_directories_of_all_servers() {
    let mut fleet = fleet(3);
    let client = fleet.client(0, By::Unix);
    for dir in 0..4 {
        client.mkdir(format!("/d{dir}"), 0o755).unwrap();
    }
    for number in 0..60 {
        let path = format!("/d{}/f{number}", number % 4);
        client.open(&path, OpenOptions::CREATE).unwrap().pwrite(0, &pattern(number, 3000)).unwrap();
    }
    let other = fleet.client(1, By::Tcp);
    for number in 0..60 {
        let (from, to) = (format!("/d{}/f{number}", number % 4), format!("/d{}/g{number}", (number + 1) % 4));
        other.rename(&from, &to, forebay_client::RenameMode::Replace).unwrap();
        client.link(&to, format!("/d{}/h{number}", (number + 2) % 4)).unwrap();
    }
    for number in 0..60 {
        let to = format!("/d{}/g{number}", (number + 1) % 4);
        assert!(read(&client, &to).unwrap() == pattern(number, 3000), "{to}");
        assert_eq!(other.stat(&to).unwrap().links, 2, "{to}");
        client.unlink(&to).unwrap();
        assert!(read(&other, &format!("/d{}/h{number}", (number + 2) % 4)).unwrap() == pattern(number, 3000));
    }
    client.rename("/d0", "/d1/d0", forebay_client::RenameMode::Replace).unwrap();
    assert_eq!(other.stat("/d1/d0").unwrap().kind, FileKind::Directory);
    assert_eq!(other.stat("/d1").unwrap().links, 3);
    for dir in ["/d1/d0", "/d1", "/d2", "/d3"] {
        let names: Vec<_> =
            other.read_dir(dir, Listing::Names).unwrap().map(|entry| entry.unwrap().name).collect();
        assert!(client.rmdir(dir).is_err(), "{dir} is not empty");
        for name in names {
            client.unlink(format!("{dir}/{name}")).unwrap();
        }
        client.rmdir(dir).unwrap();
    }
    assert_eq!(client.stat("/").unwrap().links, 2);
    fleet.check();
}

#[test]
fn client_adopts_a_newer_server_list() {
    let mut fleet = fleet(2);
    let client = fleet.client(0, By::Unix);
    for number in 0..8 {
        client.mkdir(format!("/d{number}"), 0o755).unwrap();
    }
    let file = client.open("/d0/f", OpenOptions::CREATE_NEW).unwrap();
    file.pwrite(0, &pattern(1, 1000)).unwrap();
    for epoch in [2, 3] {
        fleet.stop_all();
        for host in &mut fleet.hosts {
            host.cluster.as_mut().expect("cluster").epoch = epoch;
        }
        fleet.start_all();
        // The servers closed its connections, and refuse its old list.
        for number in 0..8 {
            assert_eq!(client.stat(format!("/d{number}")).unwrap().kind, FileKind::Directory);
        }
        assert_eq!(client.welcome().unwrap().members.epoch(), epoch);
        assert!(read(&client, "/d0/f").unwrap() == pattern(1, 1000));
        file.pwrite(0, &pattern(1, 1000)).unwrap();
    }
    drop((file, client));
    fleet.check();
}
