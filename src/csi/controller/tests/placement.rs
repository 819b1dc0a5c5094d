//! Where volumes are made, and what GetCapacity says of it.

use super::super::supply::Inquiry;
use super::*;
use crate::model::volume::reason;

fn capacity(change: impl Fn(&mut csi::GetCapacityRequest)) -> Result<Option<Inquiry>, Refusal> {
    let mut request = csi::GetCapacityRequest::default();
    change(&mut request);
    Inquiry::parse(&request)
}

fn parameters(given: &[(&str, &str)]) -> std::collections::HashMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    given.iter().map(owned).collect()
}

impl Room {
    /// Available, largest and smallest.
    async fn supply(&self, change: impl Fn(&mut csi::GetCapacityRequest)) -> (u64, u64, u64) {
        let inquiry = capacity(change).unwrap().unwrap();
        let answer = self.controller.supply(inquiry, soon()).await.unwrap();
        let unsigned = |value: Option<i64>| value.unwrap().unsigned_abs();
        (
            answer.available_capacity.unsigned_abs(),
            unsigned(answer.maximum_volume_size),
            unsigned(answer.minimum_volume_size),
        )
    }

    async fn home(&self, name: &str) -> (String, String) {
        let volumes = self.controller.store.volumes();
        let spec = volumes.get(name).await.unwrap().unwrap().spec;
        (spec.owner_node, spec.pool)
    }
}

fn sized(name: &str, pools: &str, bytes: u64) -> csi::CreateVolumeRequest {
    with(|r| {
        r.name = name.into();
        r.parameters.insert("pool".into(), pools.into());
        r.capacity_range = Some(range(bytes.cast_signed(), 0));
    })
}

fn thick(name: &str, pools: &str, bytes: u64) -> csi::CreateVolumeRequest {
    let mut request = sized(name, pools, bytes);
    let provisioning = ("provisioning".to_owned(), "thick".to_owned());
    request.parameters.extend([provisioning]);
    request
}

#[tokio::test]
async fn volumes_go_to_the_pool_with_the_most_room_on_any_host() {
    let room = Room::new(Fate::Ready);
    room.host("storage0", vec![pool("tank", 4 * GIB), pool("fast", GIB)])
        .await;
    room.host("storage1", vec![pool("tank", 9 * GIB)]).await;
    room.create(&sized("a", "tank", 6 * GIB)).await.unwrap();
    room.create(&sized("b", "tank,fast", 2 * GIB))
        .await
        .unwrap();
    room.create(&sized("c", "fast", GIB)).await.unwrap();
    let storage = |node: &str, pool: &str| (node.to_owned(), pool.to_owned());
    assert_eq!(room.home("a").await, storage("storage1", "tank"));
    assert_eq!(room.home("b").await, storage("storage0", "tank"));
    assert_eq!(room.home("c").await, storage("storage0", "fast"));
}

#[tokio::test]
async fn rule_07_what_fits_nowhere_is_refused_and_leaves_nothing() {
    let room = Room::new(Fate::Ready);
    room.host("storage0", vec![pool("tank", 4 * GIB)]).await;
    refused(
        room.create(&sized("v", "tank", 5 * GIB)).await,
        Kind::ResourceExhausted,
        "tank on storage0",
    );
    room.create(&thick("a", "tank", 3 * GIB)).await.unwrap();
    refused(
        room.create(&thick("v", "tank", 2 * GIB)).await,
        Kind::ResourceExhausted,
        "tank on storage0",
    );
    let mut sick = pool("tank", 4 * GIB);
    sick.health = "SUSPENDED".into();
    room.host("storage0", vec![sick]).await;
    refused(
        room.create(&sized("v", "tank", GIB)).await,
        Kind::Unavailable,
        "SUSPENDED",
    );
    let mut worn = pool("tank", 4 * GIB);
    worn.health = "DEGRADED".into();
    room.host("storage0", vec![worn]).await;
    room.create(&sized("v", "tank", GIB))
        .await
        .expect("a degraded pool serves");
}

#[tokio::test]
async fn a_pool_that_nobody_has_spoken_of_is_asked_for_at_its_host() {
    let room = Room::new(Fate::Error(reason::POOL_NOT_FOUND));
    room.host("storage0", vec![pool("tank", 4 * GIB)]).await;
    refused(
        room.create(&sized("v", "thank", GIB)).await,
        Kind::InvalidArgument,
        "there is tank on storage0",
    );
    room.plays(Fate::Ready);
    room.create(&sized("v", "new", GIB)).await.unwrap();
    assert_eq!(room.home("v").await, ("storage0".into(), "new".into()));
    // Of other hosts nobody here knows more than they have said.
    let elsewhere = Room::new(Fate::Ready);
    elsewhere
        .host("storage1", vec![pool("tank", 4 * GIB)])
        .await;
    refused(
        elsewhere.create(&sized("v", "thank", GIB)).await,
        Kind::InvalidArgument,
        "tank on storage1",
    );
}

#[tokio::test]
async fn with_no_host_of_its_own_a_volume_waits_for_the_first_report() {
    let room = Room::of_many_hosts(Fate::Ready);
    refused(
        room.create(&sized("v", "tank", GIB)).await,
        Kind::Unavailable,
        "start `zvolt agent` on a storage host",
    );
    assert_eq!(
        room.controller.store.volumes().list().await.unwrap(),
        Vec::new()
    );
    room.host("storage1", vec![pool("tank", 4 * GIB)]).await;
    room.create(&sized("v", "tank", GIB)).await.unwrap();
    assert_eq!(room.home("v").await, ("storage1".into(), "tank".into()));
    refused(
        room.create(&sized("w", "thank", GIB)).await,
        Kind::InvalidArgument,
        "tank on storage1",
    );
}

#[tokio::test]
async fn a_copy_goes_where_its_source_is_or_nowhere() {
    let room = Room::new(Fate::Ready);
    room.host("storage0", vec![pool("tank", 4 * GIB)]).await;
    room.create(&sized("a", "tank", GIB)).await.unwrap();
    room.host("storage1", vec![pool("tank", 90 * GIB)]).await;
    let copy = |name: &str| {
        let mut request = sized(name, "tank", GIB);
        request.volume_content_source = Some(sources::from_volume("a"));
        request
    };
    room.create(&copy("b")).await.unwrap();
    assert_eq!(room.home("b").await.0, "storage0");
    room.host("storage0", Vec::new()).await;
    refused(
        room.create(&copy("c")).await,
        Kind::Unavailable,
        "tank on storage1",
    );
}

#[tokio::test]
async fn thick_volumes_at_once_are_never_promised_the_same_room() {
    let room = Room::new(Fate::Ready);
    room.host("storage0", vec![pool("tank", 20 * GIB)]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..64 {
        let controller = room.controller.clone();
        let request = thick(&format!("pvc-{number}"), "tank", GIB);
        tasks.spawn(async move {
            let wanted = Wanted::parse(&request)?;
            let deadline = Instant::now() + Duration::from_secs(60);
            controller.create(wanted, deadline).await
        });
    }
    let (mut made, mut full) = (0, 0);
    while let Some(outcome) = tasks.join_next().await {
        match outcome.unwrap() {
            Ok(_) => made += 1,
            Err(refusal) if refusal.kind == Kind::ResourceExhausted => full += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((made, full), (20, 44));
}

#[tokio::test]
async fn a_place_is_kept_until_its_volume_is_written_and_no_longer() {
    let room = Room::new(Fate::Ready);
    room.host("storage0", vec![pool("tank", 3 * GIB)]).await;
    let pools = ["tank".to_owned()];
    let demand = crate::model::placement::Demand {
        node: None,
        pools: &pools,
        bytes: 2 * GIB,
        block: BLOCK,
        provisioning: crate::model::volume::Provisioning::Thick,
    };
    let kept = room.controller.place("a", &demand, soon()).await.unwrap();
    let other = room.controller.place("b", &demand, soon()).await;
    refused(other, Kind::ResourceExhausted, "tank");
    drop(kept);
    room.controller
        .place("b", &demand, soon())
        .await
        .expect("free again");
}

#[tokio::test]
async fn bug_c_79_capacity_is_what_can_really_be_had() {
    let room = Room::new(Fate::Ready);
    let mut tank = pool("tank", 4 * GIB);
    tank.used = GIB;
    tank.cost_of_gib.insert(8 << 10, 2 * GIB);
    room.host("storage0", vec![tank, pool("fast", GIB)]).await;
    assert_eq!(
        room.supply(|_| ()).await,
        (5 * GIB, 5 * GIB, BLOCK),
        "of all pools, and a thin one could be as large as a whole pool"
    );
    let of =
        |given: &'static [(&str, &str)]| room.supply(move |r| r.parameters = parameters(given));
    assert_eq!(of(&[("pool", "fast")]).await, (GIB, GIB, BLOCK));
    assert_eq!(
        of(&[("pool", "tank"), ("provisioning", "thick")]).await,
        (4 * GIB, 4 * GIB, BLOCK)
    );
    assert_eq!(
        of(&[
            ("pool", "tank"),
            ("provisioning", "thick"),
            ("volBlockSize", "8k")
        ])
        .await,
        (2 * GIB, 2 * GIB, 8 << 10)
    );
    assert_eq!(of(&[("pool", "none")]).await, (0, 0, BLOCK));
    room.create(&thick("a", "tank", 3 * GIB)).await.unwrap();
    assert_eq!(
        of(&[("pool", "tank"), ("provisioning", "thick")]).await.0,
        GIB,
        "what is promised is not there any more"
    );
    let xfs = room
        .supply(|r| {
            r.volume_capabilities = vec![mount(Mode::SingleNodeWriter)];
            r.parameters = parameters(&[("pool", "tank"), ("fsType", "xfs")]);
        })
        .await;
    assert_eq!(xfs.2, 300 << 20);
}

#[test]
fn capacity_for_what_cannot_be_had_is_none() {
    let none = |change: &dyn Fn(&mut csi::GetCapacityRequest)| {
        assert!(capacity(change).unwrap().is_none());
    };
    none(&|r| r.volume_capabilities = vec![mount(Mode::MultiNodeMultiWriter)]);
    none(&|r| {
        let segments = [("zone".to_owned(), "a".to_owned())].into();
        r.accessible_topology = Some(csi::Topology { segments });
    });
    assert!(
        capacity(|r| r.accessible_topology = Some(csi::Topology::default()))
            .unwrap()
            .is_some()
    );
    for (key, value) in [("colour", "blue"), ("pool", "a/b"), ("volBlockSize", "8k")] {
        let outcome = capacity(|r| r.parameters = parameters(&[(key, value)]));
        assert_eq!(outcome.unwrap_err().kind, Kind::InvalidArgument, "{key}");
    }
}
