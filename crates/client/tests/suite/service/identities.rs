//! Requests on behalf of other users.

use super::world::{By, World};
use forebay_client::OpenOptions;
use forebay_model::{ErrorKind, Gid, Identity, Uid};

fn person(uid: u32, groups: &[u32]) -> Identity {
    Identity { uid: Uid(uid), gid: Gid(uid), groups: groups.iter().copied().map(Gid).collect() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_owner_may_act_as_any_user() {
    let world = World::new(32);
    let owner = world.client(By::Unix).await;
    let (alice, bob) = (owner.as_identity(person(5001, &[6000])), owner.as_identity(person(5002, &[6000])));
    let options = OpenOptions { mode: 0o600, ..OpenOptions::CREATE };
    let file = alice.open("/secret", options).await.unwrap();
    file.pwrite(0, b"mine").await.unwrap();
    assert_eq!(owner.stat("/secret").await.unwrap().uid, Uid(5001));
    for error in [
        bob.open("/secret", OpenOptions::READ).await.map(drop).unwrap_err(),
        bob.open("/secret", OpenOptions::CREATE).await.map(drop).unwrap_err(),
        bob.truncate("/secret", 0).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
        assert!(error.to_string().contains("/secret"), "{error}");
    }
    assert_eq!(bob.chmod("/secret", 0o777).await.unwrap_err().kind(), ErrorKind::NotPermitted);
    assert!(bob.unlink("/secret").await.is_err(), "the root directory is sticky");
    alice.chmod("/secret", 0o640).await.unwrap();
    assert!(bob.open("/secret", OpenOptions::READ).await.is_err(), "the group is alice's own");
    alice.chown("/secret", None, Some(Gid(6000))).await.unwrap();
    let read = bob.open("/secret", OpenOptions::READ).await.unwrap();
    let mut back = [0; 8];
    assert_eq!(read.pread(0, &mut back).await.unwrap(), 4);
    assert_eq!(read.pwrite(0, b"his").await.unwrap_err().kind(), ErrorKind::BadHandle);
}
