// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/sim/machost"
	sim "github.com/hyperfleet/hyperfleet/sim/scaleway"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

const macFleetName = "macs"

// macsFixture is a fleet of Macs at a simulated Scaleway. Each Mac runs the scripts that it gets,
// and is a Node of the test's own API server with a pod on it.
type macsFixture struct {
	*fixture

	cloud *sim.Simulator
	mu    sync.Mutex
	boxes map[string]*machost.Host // by the name of the server
	// updating holds the Macs, by name, on which an installation has started and whose version has
	// not changed yet. maxUpdating is the highest number of them.
	updating    map[string]bool
	maxUpdating int
	problems    []string
}

func newMacsFixture(t *testing.T, timeout time.Duration, names ...string) *macsFixture {
	t.Helper()

	m := &macsFixture{fixture: newFixture(t, 0, infrav1.HostRollout{}), boxes: map[string]*machost.Host{}, updating: map[string]bool{}}
	m.configureMacs()

	port := loopback.Port(t)
	cloud := sim.New(sim.Options{DeliveryTime: time.Millisecond, RebootTime: time.Millisecond, ReinstallTime: time.Millisecond,
		Address: func(server sim.Server) string { return m.startMac(server, port) }})
	m.cloud = cloud
	server := httptest.NewServer(cloud)

	t.Cleanup(func() {
		server.Close()

		for _, box := range m.boxes {
			if unknown := box.UnknownCalls(); len(unknown) > 0 {
				t.Errorf("a Mac got unknown calls %v", unknown)
			}

			_ = box.Close()
		}
	})

	m.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "scaleway"}, StringData: map[string]string{
		infrav1.ScalewayAccessKey: sim.DefaultAccessKey, infrav1.ScalewaySecretKey: sim.DefaultSecretKey,
		infrav1.ScalewayProjectID: sim.DefaultProject, infrav1.ScalewayAPIURL: server.URL,
	}})
	m.egress = allowServer(t, server.URL)
	m.writeKubeconfig(env.Config)
	m.create(&infrav1.HostFleet{ObjectMeta: metav1.ObjectMeta{Name: macFleetName}, Spec: infrav1.HostFleetSpec{
		HostKind: mac.Name, Rollout: rollout(1),
		Drain: &infrav1.NodeDrain{
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: nodesKubeconfig, Key: "kubeconfig"},
			Timeout:             metav1.Duration{Duration: timeout},
		},
	}})

	for _, name := range names {
		env.CreateNode(t, name, nil)
		env.CreatePod(t, m.namespace, name, "pod-"+name, nil)
		m.create(&infrav1.ScalewayAppleSiliconMachine{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: infrav1.ScalewayAppleSiliconMachineSpec{
				FleetName: macFleetName, CredentialsSecretRef: infrav1.ScalewaySecretRef{Name: "scaleway"}, SSHPort: int32(port),
				SSHHostKeys:         infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
				SSHKeySecretRef:     infrav1.LocalSecretKeySelector{Name: "hosts", Key: "key"},
				KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: "hosts", Key: "kubeconfig"},
			},
		})
	}

	m.startOperator()
	m.eventually("all Macs have their configuration", func() string {
		if f := m.getMacFleet(); int(f.Status.Converged) != len(names) {
			return fmt.Sprintf("%+v; %v", f.Status, m.getMac(names[0]).Status.Conditions)
		}

		return ""
	})

	return m
}

// configureMacs sets the operator's configuration for Macs.
func (w *fixture) configureMacs() {
	w.t.Helper()

	programs, err := machost.NewPrograms("1")
	w.must(err)

	w.cfg.RetryBase, w.cfg.RetryCap, w.cfg.MaxUpdateAttempts = 100*time.Millisecond, time.Second, 50
	w.cfg.Mac = config.MacHosts{
		TartKubeletFile: w.writeProgram("kubelet", programs.Kubelet), TartFile: w.writeProgram("tart", programs.Tart),
		NodeExporterFile: w.writeProgram("exporter", programs.NodeExporter), MaxPods: 2, VMEgressCIDR: "10.21.0.0/16",
	}
}

// startMac starts the Mac of a server, at its own address.
func (m *macsFixture) startMac(server sim.Server, port int) string {
	m.mu.Lock()
	defer m.mu.Unlock()

	address := fmt.Sprintf("127.78.%d.%d", port%250, len(m.boxes)+1)
	name := strings.TrimPrefix(server.Name, "hf-")
	name = name[:len(name)-len("-00000000-0000-0000-0000-000000000000")]

	box, err := machost.Start(context.Background(), machost.Options{
		Name: name, Address: net.JoinHostPort(address, strconv.Itoa(port)), Password: server.Password,
		AuthorizedKeys: slices.Clone(server.SSHKeys), Watch: func(run machost.Run) { m.checkInstallation(name, run) },
	})
	if err != nil {
		m.t.Errorf("start %s: %v", name, err)

		return "192.0.2.1"
	}

	m.boxes[name] = box

	return address
}

// checkInstallation checks that an installation only runs on a Mac whose Node is drained.
func (m *macsFixture) checkInstallation(name string, run machost.Run) {
	if run.Label != "macos-install" || run.Ended {
		return
	}

	node := &corev1.Node{}
	err := env.Client.Get(context.Background(), client.ObjectKey{Name: name}, node)
	pod := env.Client.Get(context.Background(), client.ObjectKey{Namespace: m.namespace, Name: "pod-" + name}, &corev1.Pod{})

	m.mu.Lock()
	defer m.mu.Unlock()

	if err != nil || !node.Spec.Unschedulable || pod == nil {
		m.problems = append(m.problems, fmt.Sprintf("%s is being updated: cordoned %t, its pod: %v", name, node.Spec.Unschedulable, pod))
	}

	m.updating[name] = true
	for other := range m.updating {
		if m.boxes[other].MacOSVersion() == m.desiredVersion() && other != name {
			delete(m.updating, other)
		}
	}

	m.maxUpdating = max(m.maxUpdating, len(m.updating))
}

func (m *macsFixture) desiredVersion() string {
	f := &infrav1.HostFleet{}
	_ = env.Client.Get(context.Background(), client.ObjectKey{Namespace: m.namespace, Name: macFleetName}, f)

	return f.Spec.MacOS.Version
}

func (m *macsFixture) getMacFleet() *infrav1.HostFleet { return m.getFleetByName(macFleetName) }

func (m *macsFixture) getMac(name string) *infrav1.ScalewayAppleSiliconMachine {
	m.t.Helper()

	box := &infrav1.ScalewayAppleSiliconMachine{}
	m.must(env.Client.Get(m.t.Context(), client.ObjectKey{Namespace: m.namespace, Name: name}, box))

	return box
}

// setVersion makes the fleet desire a version, and sets which versions Apple offers and how updates
// fail.
func (m *macsFixture) setVersion(version string, timeout time.Duration, fault machost.UpdateFault, offers ...string) {
	m.t.Helper()

	for _, box := range m.boxes {
		m.must(box.SetMacOS(box.MacOSVersion(), offers...))

		m.must(box.SetUpdateFault(fault))
	}

	f := m.getMacFleet()
	base := f.DeepCopy()
	f.Spec.MacOS = &infrav1.HostMacOS{Version: version, Timeout: metav1.Duration{Duration: timeout}}

	m.must(env.Client.Patch(m.t.Context(), f, client.MergeFrom(base)))
}

// setDrainTimeout sets how long the Node of a Mac may take to be drained.
func (m *macsFixture) setDrainTimeout(timeout time.Duration) {
	m.t.Helper()

	f := m.getMacFleet()
	base := f.DeepCopy()
	f.Spec.Drain.Timeout = metav1.Duration{Duration: timeout}

	m.must(env.Client.Patch(m.t.Context(), f, client.MergeFrom(base)))
}

// waitForUpdate waits until all Macs have the version and their Nodes are in service.
func (m *macsFixture) waitForUpdate(version string) {
	m.t.Helper()
	m.eventually("all Macs have macOS "+version, func() string {
		f := m.getMacFleet()
		if f.Status.Converged != f.Status.Hosts || len(f.Status.Permits) > 0 || f.Status.MacOSVersion != version {
			var conditions []string
			for name := range m.boxes {
				conditions = append(conditions, fmt.Sprintf("%+v", m.getMac(name).Status.Conditions))
			}

			return fmt.Sprintf("%+v: %v", f.Status, conditions)
		}

		return ""
	})

	for name, box := range m.boxes {
		status := m.getMac(name).Status
		if box.MacOSVersion() != version || status.OSVersion != version || status.OSUpdate != nil || status.Push != nil || !status.Ready {
			m.t.Errorf("%s has macOS %s, and its status is %+v", name, box.MacOSVersion(), status.HostStatus)
		}
	}
}

// Macs are updated one after the other, even across a restart of the operator. Each Mac is drained
// before its update and back in service before the next update starts. Parts that the update
// removed are restored, and a Node that a person cordoned stays cordoned.
func TestMacsAreUpdatedOneAfterTheOther(t *testing.T) {
	t.Parallel()

	const one, cordoned = "updated-one", "updated-cordoned"

	m := newMacsFixture(t, time.Minute, one, cordoned)

	node := env.GetNode(t, cordoned)
	node.Spec.Unschedulable = true

	m.must(env.Client.Update(t.Context(), node))

	m.setVersion("15.3.1", time.Hour, machost.UpdateFaultNone, "15.3.1", "15.4")
	m.eventually("an update runs", func() string {
		for name := range m.boxes {
			if s := m.getMac(name).Status; s.OSUpdate != nil && s.OSUpdate.InstallStartedAt != nil {
				if s.Phase != infrav1.HostUpdating || s.Ready || meta.IsStatusConditionTrue(s.Conditions, "Ready") {
					t.Errorf("during the update, %s is %s: %v", name, s.Phase, s.Conditions)
				}

				return ""
			}
		}

		return "none"
	})

	m.stop()
	m.startOperator()
	m.waitForUpdate("15.3.1")

	if m.maxUpdating != 1 || len(m.problems) > 0 {
		t.Errorf("%d updates at a time; %v", m.maxUpdating, m.problems)
	}

	programs, err := mac.Load(m.cfg.Mac)
	m.must(err)

	for name, box := range m.boxes {
		if got, want := m.getMac(name).Status.TartKubeletBinarySHA, programs.TartKubeletBinary.SHA256(); got != want {
			t.Errorf("the status of %s has the kubelet's digest %q, want %q", name, got, want)
		}

		node := env.GetNode(t, name)
		if _, marked := node.Annotations[infrav1.AnnotationCordonedForUpdate]; node.Spec.Unschedulable != (name == cordoned) || marked {
			t.Errorf("node %s: cordoned %t, %v", name, node.Spec.Unschedulable, node.Annotations)
		}

		begun := 0

		for _, call := range box.Calls() {
			if strings.HasPrefix(call, "softwareupdate --install") {
				begun++
			}
		}

		if begun != 1 || !strings.Contains(box.ReadFile("/etc/pf.conf"), "hyperfleet") {
			t.Errorf("%s: softwareupdate ran %d times, want once; pf.conf:\n%s", name, begun, box.ReadFile("/etc/pf.conf"))
		}

		m.waitForEvent(name, "MacOSUpdated")
	}

	// A Mac with a later version is not updated.
	m.setVersion("15.3", time.Hour, machost.UpdateFaultNone)
	m.eventually("the fleet has converged", func() string {
		if f := m.getMacFleet(); f.Status.MacOSVersion != "15.3" || int(f.Status.Converged) != len(m.boxes) {
			return fmt.Sprintf("%+v", f.Status)
		}

		return ""
	})
}

// A failed update is reported with the Mac's message, stops the rollout after one Mac, and leaves
// the Node in service. Another version starts with no failed attempts. push.TestMacOSUpdate covers
// other failures.
func TestMacOSUpdatesThatFail(t *testing.T) {
	t.Parallel()

	m := newMacsFixture(t, time.Hour, "failing-one", "failing-two")

	for i, c := range []struct {
		fault   machost.UpdateFault
		offered bool
		timeout time.Duration
		want    string
	}{
		{machost.UpdateFaultNone, false, time.Hour, "UpdateNotOffered: Apple does not offer macOS"},
		{machost.UpdateDiskFull, true, time.Hour, "NotEnoughDisk: Not enough free disk space"},
		{machost.UpdateDownloadHangs, true, 10 * time.Second, "UpdateTimedOut: the update was stopped"},
	} {
		version := fmt.Sprintf("15.4.%d", i+1)
		offers := []string{"15.9"}

		if c.offered {
			offers = append(offers, version)
		}

		m.setVersion(version, c.timeout, c.fault, offers...)
		m.waitForStop(version, c.want)
	}

	// If a drain hangs, nothing is installed.
	before := m.countInstalls()

	for name := range m.boxes {
		env.CreatePod(t, m.namespace, name, "kept-"+name, func(p *corev1.Pod) { p.Labels["app"] = "kept" })
	}

	env.SetBudget(t, m.namespace, "kept", 0)
	m.setDrainTimeout(2 * time.Second)
	m.setVersion("15.5", time.Hour, machost.UpdateFaultNone, "15.5")
	m.waitForStop("15.5", "DrainTimedOut")

	if after := m.countInstalls(); after != before {
		t.Errorf("%d installations although the drain hangs", after-before)
	}

	env.SetBudget(t, m.namespace, "kept", 2)
	m.setDrainTimeout(time.Hour)

	// A Node is not ready after the update.
	m.setNodesReady(corev1.ConditionFalse)
	m.setVersion("15.6", 15*time.Second, machost.UpdateFaultNone, "15.6")
	m.waitForStop("15.6", "NodeNotReady: the host has macOS 15.6, but its Node was not ready within 15s")
	m.setNodesReady(corev1.ConditionTrue)

	// A host does not come back after its restart.
	m.setVersion("15.7", 4*time.Second, machost.UpdateHostUnreachable, "15.7")
	gone := m.waitForStop("15.7", "RestartTimedOut: the host has been unreachable since")

	if s := m.getMac(gone).Status; s.UnreachableSince == nil {
		t.Errorf("the status of %s is not unreachable: %+v", gone, s.HostStatus)
	}

	m.must(m.boxes[gone].SetUpdateFault(machost.UpdateFaultNone))

	m.must(m.boxes[gone].Restart(t.Context()))

	m.setVersion("15.8", time.Hour, machost.UpdateFaultNone, "15.8")
	m.waitForUpdate("15.8")
}

// waitForStop waits until the rollout has stopped at one Mac for a reason, and returns the Mac's
// name. It checks that the other Mac was not touched and that both Nodes are in service.
func (m *macsFixture) waitForStop(version, want string) string {
	m.t.Helper()

	var refused []string

	m.eventually("macOS "+version+" is rejected: "+want, func() string {
		refused = nil

		var statuses strings.Builder

		for name := range m.boxes {
			s := m.getMac(name).Status
			fmt.Fprintf(&statuses, "%s: %s %+v %v; ", name, s.FailedHostConfigHash, s.OSUpdate, s.Conditions)

			if strings.HasSuffix(s.FailedHostConfigHash, "+macos-"+version) && s.OSUpdate == nil {
				refused = append(refused, name)
			}
		}

		f := m.getMacFleet()
		if len(refused) == 0 || !strings.HasSuffix(f.Status.StoppedHash, "+macos-"+version) || len(f.Status.Permits) > 0 {
			return fmt.Sprintf("%+v: %s", f.Status, statuses.String())
		}

		return ""
	})

	if len(refused) != 1 {
		m.t.Errorf("%v rejected the update, want only one Mac", refused)
	}

	m.eventually("an event contains "+want, func() string {
		if notes := m.eventNotes(refused[0], "MacOSUpdateFailed"); !strings.Contains(notes, "update to macOS "+version+": "+want) {
			return notes
		}

		return ""
	})

	for name := range m.boxes {
		if node := env.GetNode(m.t, name); node.Spec.Unschedulable {
			m.t.Errorf("node %s is still cordoned", name)
		}
	}

	return refused[0]
}

func (m *macsFixture) countInstalls() int {
	begun := 0

	for _, box := range m.boxes {
		for _, call := range box.Calls() {
			if strings.HasPrefix(call, "softwareupdate --install") {
				begun++
			}
		}
	}

	return begun
}

// setNodesReady sets the Ready condition of all Nodes.
func (m *macsFixture) setNodesReady(is corev1.ConditionStatus) {
	m.t.Helper()

	for name := range m.boxes {
		node := env.GetNode(m.t, name)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}

		m.must(env.Client.Status().Update(m.t.Context(), node))
	}
}
