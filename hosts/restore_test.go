// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/kit/property"
	sim "github.com/hyperfleet/hyperfleet/sim/scaleway"
	"github.com/hyperfleet/hyperfleet/test/fixes"
)

// restoreObject brings an object to the state after a restore without its status: the same object with an
// empty status, or another object with the same name. empty empties the status.
func (w *fixture) restoreObject(object client.Object, isInPlace bool, empty func()) {
	w.t.Helper()
	w.must(env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object))
	empty()

	if isInPlace {
		w.must(env.Client.Status().Update(w.t.Context(), object))

		return
	}

	current, _ := object.DeepCopyObject().(client.Object)
	w.must(env.Client.Patch(w.t.Context(), current,
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	w.must(env.Client.Delete(w.t.Context(), current))
	object.SetUID("")
	object.SetResourceVersion("")
	w.must(env.Client.Create(w.t.Context(), object))
}

// restoreFleet restores a fleet without its status.
func (w *fixture) restoreFleet(name string, isInPlace bool) {
	fleet := &infrav1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.restoreObject(fleet, isInPlace, func() { fleet.Status = infrav1.HostFleetStatus{} })
}

// forEachRestore runs a test for both kinds of restores.
func forEachRestore(t *testing.T, test func(t *testing.T, isInPlace bool)) {
	t.Helper()
	t.Parallel()

	for name, isInPlace := range map[string]bool{"same-UIDs": true, "other-UIDs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, isInPlace)
		})
	}
}

// After a restore without statuses, no host gets a second first boot, and the configuration is pushed again to
// one host at a time. A host with another key than before is not trusted.
func TestHostsRestoredWithoutStatus(t *testing.T) {
	forEachRestore(t, func(t *testing.T, isInPlace bool) {
		t.Helper()

		w := newFixture(t, 3, rollout(1))
		w.startOperator()
		w.waitUntilConverged(3)

		names := []string{"rack-00", "rack-01", "rack-02"}
		restore := func(names ...string) {
			w.eventually("the hosts are marked", func() string {
				for _, name := range names {
					if marks := w.getHost(name).Annotations; !strings.HasSuffix(marks[infrav1.AnnotationBootstrapped], " true") {
						return fmt.Sprint(name, marks)
					}
				}

				return ""
			})
			w.stop()

			for _, name := range names {
				host := w.getHost(name)
				w.restoreObject(host, isInPlace, func() { host.Status = infrav1.LinuxMachineStatus{} })
			}
		}
		countBoots := func() int {
			return strings.Count(w.eventNotes("rack-00", "AgentRolled"), string(drift.FirstBoot))
		}

		boots, keys := countBoots(), w.getHost("rack-00").Status.SSHHostKey

		restore(names...)
		w.restoreFleet(fleetName, isInPlace)
		w.resetMaxBusy()
		w.startOperator()
		w.waitUntilConverged(3)

		if after := countBoots(); after != boots || w.getHost("rack-00").Status.SSHHostKey != keys {
			t.Errorf("%d first boots before the restore, and %d after it", boots, after)
		}

		if busy := w.maxBusyHosts(); busy > 1 {
			t.Errorf("%d hosts were pushed to at the same time", busy)
		}

		restore("rack-02")
		w.must(w.hosts["rack-02"].ChangeKey()) // another server answers at its address

		runs := len(w.scriptLabels("rack-02"))

		w.startOperator()
		w.waitWhile("rack-02", "is trusted", func(m *infrav1.LinuxMachine) bool {
			return m.Status.FailureReason != infrav1.FailureHostKeyChanged
		})

		if got := w.scriptLabels("rack-02"); len(got) != runs {
			t.Errorf("the unknown server got %v", got[runs:])
		}
	})
}

// After a restore without statuses, each Mac keeps its server, and none is ordered. A Mac that is deleted
// right after the restore returns its server.
func TestMacsRestoredWithoutStatus(t *testing.T) {
	forEachRestore(t, func(t *testing.T, isInPlace bool) {
		t.Helper()

		prefix := strings.ToLower(strings.ReplaceAll(env.Namespace(t), ".", "-"))
		names := []string{prefix + "-a", prefix + "-b"}
		m := newMacsFixture(t, time.Second, names...)

		m.eventually("the Macs are marked", func() string {
			for _, name := range names {
				if marks := m.getMac(name).Annotations; !strings.HasSuffix(marks[infrav1.AnnotationBootstrapped], " true") {
					return fmt.Sprint(name, marks)
				}
			}

			return ""
		})
		m.stop()

		before := map[string]*infrav1.ScalewayAppleSiliconMachine{}

		for _, name := range names {
			before[name] = m.getMac(name)
			object := m.getMac(name)
			m.restoreObject(object, isInPlace, func() { object.Status = infrav1.ScalewayAppleSiliconMachineStatus{} })
		}

		m.restoreFleet(macFleetName, isInPlace)
		m.must(env.Client.Delete(t.Context(), m.getMac(names[1])))
		m.startOperator()
		m.eventually("one Mac converges and one is released", func() string {
			first := m.getMac(names[0])
			if !meta.IsStatusConditionTrue(first.Status.Conditions, "Ready") || first.Status.ServerID != before[names[0]].Status.ServerID {
				return fmt.Sprintf("%+v", first.Status)
			}

			second := &infrav1.ScalewayAppleSiliconMachine{}
			if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: m.namespace, Name: names[1]}, second); err == nil {
				return fmt.Sprintf("%+v", second.Status)
			}

			return ""
		})

		if servers := m.cloud.Servers(); len(servers) != len(names) {
			t.Errorf("%d Macs have servers %v", len(names), formatServers(servers))
		}

		for _, server := range m.cloud.Servers() {
			if isReturned := server.ID == before[names[1]].Status.ServerID; server.DeletionScheduled != isReturned {
				t.Errorf("server %s: deletion scheduled: %t", server.Name, server.DeletionScheduled)
			}
		}
	})
}

// A host from a backup of a version that wrote no annotations gets no second first boot, and nothing is sent to it
// before a person says which key it has.
func TestHostsFromOlderBackups(t *testing.T) {
	forEachRestore(t, func(t *testing.T, isInPlace bool) {
		t.Helper()

		w := newFixture(t, 1, rollout(1))
		w.startOperator()
		w.waitUntilConverged(1)
		w.stop()

		const name = "rack-00"

		key, runs := w.getHost(name).Status.SSHHostKey, len(w.scriptLabels(name))
		object := w.getHost(name)
		object.Annotations = nil
		w.must(env.Client.Update(t.Context(), object))
		w.restoreObject(object, isInPlace, func() { object.Status = infrav1.LinuxMachineStatus{} })
		w.startOperator()
		w.waitForCondition(name, infrav1.ConditionHostKeyPinned, "False HostKeyLost: the status of the host was lost")

		if after := len(w.scriptLabels(name)); after != runs {
			t.Errorf("%d scripts ran on a host whose key is unknown", after-runs)
		}

		w.patchStatus(name, func(status *infrav1.LinuxMachineStatus) { status.FailureReason = "" })
		w.waitUntilConverged(1)

		if got := w.getHost(name).Status.SSHHostKey; got != key {
			t.Errorf("the host has the key %s, and had %s", got, key)
		}

		if notes := w.eventNotes(name, "AgentRolled"); strings.Count(notes, string(drift.FirstBoot)) != 1 {
			t.Errorf("the host had more than one first boot:\n%s", notes)
		}
	})
}

// A Mac from a backup of a version that wrote no annotations orders no second server. A person says whether the server
// with its name is its own.
func TestMacsFromOlderBackups(t *testing.T) {
	t.Parallel()

	for name, prefix := range map[string]string{"ordered": "", "of a pool": "pool-"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newMacFixture(t, sim.Options{})
			if prefix != "" {
				w.sim.AddServer(prefix+"first", "M4-S")
				w.sim.AddServer(prefix+"second", "M4-S")
			}

			w.createMachine("mac-1", func(s *macSpec) { s.AdoptPoolPrefix = prefix })
			w.provisionFully("mac-1")

			count, serverID := len(w.sim.Servers()), w.getMachine("mac-1").Status.ServerID
			plain := &fixture{t: t, namespace: w.namespace}
			restore := func(isInPlace bool) {
				object := w.getMachine("mac-1")
				object.Annotations = nil
				w.must(env.Client.Update(t.Context(), object))
				plain.restoreObject(object, isInPlace, func() { object.Status = infrav1.ScalewayAppleSiliconMachineStatus{} })
				w.readBack("mac-1")
			}

			restore(false)
			w.requireResult(w.provision("mac-1"), "PreviousServerExists")

			message := meta.FindStatusCondition(w.getMachine("mac-1").Status.Conditions, infrav1.ConditionProvisioned).Message
			fixes.Kubectl(t, env, message)
			w.provisionFully("mac-1")

			if got := w.getMachine("mac-1").Status.ServerID; got != serverID || len(w.sim.Servers()) != count {
				t.Errorf("the Mac has server %s, and had %s; servers %v", got, serverID, formatServers(w.sim.Servers()))
			}

			restore(true)
			w.clock.Step(25 * time.Hour)
			w.returnMac("mac-1")

			if after := len(w.sim.Servers()); prefix == "" && after != 0 || prefix != "" && after != count {
				t.Errorf("%d servers after the return of the Mac, before it %d: %v", after, count, formatServers(w.sim.Servers()))
			}
		})
	}
}

// A server of a pool keeps its machine after a restore, and gets its own name back when it is returned. The
// marks of one machine that were copied to another one have no effect.
func TestPoolServerRestoredWithoutStatus(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.sim.AddServer("pool-first", "M4-S")
	w.sim.AddServer("pool-second", "M4-S")
	w.createMachine("mac-1", func(s *macSpec) { s.AdoptPoolPrefix = "pool-" })
	w.provisionFully("mac-1")

	object := w.getMachine("mac-1")
	serverID := object.Status.ServerID
	object.Annotations = w.kind.Marks(object)
	w.must(env.Client.Update(t.Context(), object))

	fixture := &fixture{t: t, namespace: w.namespace}
	fixture.restoreObject(object, false, func() { object.Status = infrav1.ScalewayAppleSiliconMachineStatus{} })
	w.readBack("mac-1")
	w.provisionFully("mac-1")

	if got := w.getMachine("mac-1"); got.Status.ServerID != serverID {
		t.Errorf("the machine has server %s, and had %s", got.Status.ServerID, serverID)
	}

	w.createMachine("mac-2", func(s *macSpec) { s.AdoptPoolPrefix = "pool-" })

	copied := w.getMachine("mac-2")
	copied.Annotations = w.kind.Marks(w.getMachine("mac-1"))
	w.must(env.Client.Update(t.Context(), copied))
	w.readBack("mac-2")
	w.provisionFully("mac-2")

	if got := w.getMachine("mac-2"); got.Status.ServerID == serverID {
		t.Error("the machine with copied annotations took the server of the other one")
	}

	w.requireResult(w.release("mac-1"), "Done")

	if servers := formatServers(w.sim.Servers()); !strings.Contains(fmt.Sprint(servers), "pool-first") {
		t.Errorf("the server has another name: %v", servers)
	}
}

// A Mac that was restored without its status, and whose API key is gone, names its server as it is named at Scaleway. It
// does not advise to delete a server of a pool.
func TestRestoredMacsWithoutKey(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		prefix, pool, want string
	}{
		"ordered":                  {"", "", "delete the server named "},
		"of a pool":                {"pool-", "pool-first", " and give it its name pool-first back"},
		"of a pool without a mark": {"pool-", "", " and give it a name that begins with pool-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newMacFixture(t, sim.Options{})
			w.sim.AddServer("pool-first", "M4-S")
			w.createMachine("mac-1", func(s *macSpec) { s.AdoptPoolPrefix = tc.prefix })
			w.provisionFully("mac-1")

			object := w.getMachine("mac-1")
			former := w.kind.Marks(object)[infrav1.AnnotationServerName]
			object.Annotations = map[string]string{infrav1.AnnotationServerName: former, infrav1.AnnotationPoolName: tc.pool}
			w.must(env.Client.Update(t.Context(), object))

			fixture := &fixture{t: t, namespace: w.namespace}
			fixture.restoreObject(object, false, func() { object.Status = infrav1.ScalewayAppleSiliconMachineStatus{} })
			w.readBack("mac-1")
			fixture.delete(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "scaleway"}})

			result := w.kind.Release(t.Context(), w.getMachine("mac-1"))
			if message := result.Message(); !result.IsStalled() || !strings.Contains(message, " or "+former+", if there is one,") ||
				!strings.Contains(message, tc.want) || strings.Contains(message, "delete ") != (tc.prefix == "") {
				t.Errorf("the release ends with %v", result)
			}
		})
	}
}

// A Mac that loses its status right after its order returns the server, although nothing provisioned it since.
func TestNewMacRestoredAndReturned(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.clock.SetTime(time.Now())
	w.createMachine("mac-1", nil)
	w.provision("mac-1")

	object := w.getMachine("mac-1")
	object.Annotations = w.kind.Marks(object)
	w.must(env.Client.Update(t.Context(), object))
	(&fixture{t: t}).restoreObject(object, true, func() { object.Status = infrav1.ScalewayAppleSiliconMachineStatus{} })
	w.readBack("mac-1")
	w.returnMac("mac-1")

	if server := w.requireServers(1)[0]; !server.DeletionScheduled {
		t.Errorf("server %s stays rented", server.Name)
	}
}

// Whatever is ordered, restored without its status and returned, in whatever order: each Mac has one server, no
// two Macs have the same one, and no server is left without a Mac.
func TestPropertyMacRestores(t *testing.T) {
	t.Parallel()

	property.Check(t, "no server is ordered twice or left", property.Options{Brief: 10}, prop.ForAllNoShrink(func(seed uint64) string {
		w := newMacFixture(t, sim.Options{})
		random := rand.New(rand.NewPCG(seed, 0))

		return w.runRestores(random)
	}, gen.UInt64()))
}

// runRestores makes random changes, and returns what is wrong after them.
func (w *macFixture) runRestores(random *rand.Rand) string {
	const steps = 12

	var (
		names, history []string
		plain          = &fixture{t: w.t, namespace: w.namespace}
	)

	for i := range steps {
		switch choice := random.IntN(5); {
		case choice == 0 || len(names) == 0:
			names = append(names, fmt.Sprintf("mac-%d", i))
			history = append(history, "create "+names[len(names)-1])
			w.createMachine(names[len(names)-1], nil)
		case choice == 1:
			name := names[random.IntN(len(names))]
			history = append(history, "provision "+name)
			w.provision(name)
			w.clock.Step(time.Duration(random.IntN(11)) * time.Minute)
		case choice == 2:
			k := random.IntN(len(names))
			history = append(history, "return "+names[k])
			w.returnMac(names[k])
			names = slices.Delete(names, k, k+1)
		default:
			name, isInPlace := names[random.IntN(len(names))], random.IntN(2) == 0
			history = append(history, fmt.Sprintf("restore %s in place %t", name, isInPlace))

			object := w.getMachine(name)
			object.Annotations = w.kind.Marks(object)
			w.must(env.Client.Update(w.t.Context(), object))
			plain.restoreObject(object, isInPlace, func() { object.Status = infrav1.ScalewayAppleSiliconMachineStatus{} })
			w.readBack(name)
		}
	}

	owners := map[string]string{}

	for _, name := range names {
		w.provisionFully(name)

		id := w.getMachine(name).Status.ServerID
		if other := owners[id]; other != "" {
			return fmt.Sprintf("%s and %s have server %s after %v", name, other, id, history)
		}

		owners[id] = name
	}

	for _, server := range w.sim.Servers() {
		if owners[server.ID] == "" && !server.DeletionScheduled {
			return fmt.Sprintf("server %s has no machine after %v", server.Name, history)
		}
	}

	return ""
}

// returnMac releases the server of a Mac and deletes the Mac.
func (w *macFixture) returnMac(name string) {
	w.t.Helper()

	for range 10 {
		if w.release(name) == "Done" {
			w.must(env.Client.Delete(w.t.Context(), w.getMachine(name)))

			return
		}

		w.clock.Step(5 * time.Minute)
	}

	w.t.Fatalf("Mac %s keeps its server: %s", name, w.release(name))
}
