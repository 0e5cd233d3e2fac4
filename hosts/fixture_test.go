// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	waitTimeout  = 5 * time.Minute
	pollInterval = 50 * time.Millisecond

	user       = "hyperfleet"
	fleetName  = "racks"
	kubeconfig = "users: [{user: {token: kubelet-token-of-the-test}}]"
)

var env *kube.Env

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.ForArea("hosts"), kube.WithControllerManager())
}

// fixture is a namespace with a fleet of simulated Linux hosts. Tests start and stop the area's
// controllers.
type fixture struct {
	t         *testing.T
	namespace string
	cfg       config.Hosts
	// key is the private key to log in with, and authorized is its line of authorized_keys.
	key, authorized string
	hosts           map[string]*machost.Host
	registry        *prometheus.Registry
	// reach limits the addresses of cloud APIs.
	egress *bounds.EgressPolicy
	// clockOffset is how far the operator's clock is ahead.
	clockOffset time.Duration
	stop        func()

	mu sync.Mutex
	// busy counts the running scripts of each host, except probes. maxBusy is the highest number of
	// hosts with a running script.
	busy    map[string]int
	maxBusy int
	// gates block scripts by their label until the channel is closed.
	gates map[string]chan struct{}
}

func newFixture(t *testing.T, n int, rollout infrav1.HostRollout) *fixture {
	t.Helper()

	w := &fixture{t: t, namespace: env.Namespace(t), hosts: map[string]*machost.Host{}, busy: map[string]int{}, stop: func() {}, gates: map[string]chan struct{}{}}
	private, line := machosttest.NewKey(t)
	w.key, w.authorized = private.Reveal(), line
	w.writeConfig("agent one")
	w.create(&infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Name: fleetName}, Spec: infrav1.HostFleetSpec{HostKind: linux.Name, Rollout: rollout},
	})
	w.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "hosts"}, StringData: map[string]string{"key": w.key, "kubeconfig": kubeconfig},
	})

	for i := range n {
		w.createHost(fmt.Sprintf("rack-%02d", i))
	}

	t.Cleanup(func() {
		w.stop()

		for name, host := range w.hosts {
			if unknown := host.UnknownCalls(); len(unknown) > 0 {
				t.Errorf("%s got unknown calls %v", name, unknown)
			}

			if err := host.Close(); err != nil {
				t.Error(err)
			}
		}
	})

	return w
}

// writeConfig writes the operator's configuration with the given agent.
func (w *fixture) writeConfig(agent string) {
	w.t.Helper()

	file, exporter := w.writeProgram("agent", []byte(agent)), w.writeProgram("exporter", []byte("exporter"))

	w.cfg = config.Default().Hosts
	w.cfg.ProbeInterval = 0
	w.cfg.RetryBase, w.cfg.RetryCap = 50*time.Millisecond, time.Second
	w.cfg.Linux = config.LinuxHosts{
		AgentFile: file, NodeExporterFile: exporter, MaxPods: 4, VMCIDR: "192.168.122.0/24",
	}
}

// writeProgram writes a file that the operator pushes to hosts.
func (w *fixture) writeProgram(name string, content []byte) string {
	w.t.Helper()

	path := filepath.Join(w.t.TempDir(), name)
	w.must(os.WriteFile(path, content, 0o600))

	return path
}

func (w *fixture) create(obj client.Object) {
	w.t.Helper()
	obj.SetNamespace(w.namespace)

	w.must(env.Client.Create(w.t.Context(), obj))
}

// createHost starts a host and creates its object.
func (w *fixture) createHost(name string) {
	w.t.Helper()
	w.createHostWith(name, func(spec *infrav1.LinuxMachineSpec) {
		spec.KubeconfigSecretRef = infrav1.LocalSecretKeySelector{Name: "hosts", Key: "kubeconfig"}
	})
}

// createHostWith starts a host and creates its object, which names no kubeconfig.
func (w *fixture) createHostWith(name string, change func(*infrav1.LinuxMachineSpec)) {
	w.t.Helper()

	host, err := machost.Start(w.t.Context(), machost.Options{
		Name: name, System: machost.Linux, Light: true, User: user, AuthorizedKeys: []string{w.authorized},
		Watch: func(run machost.Run) { w.recordRun(name, run) },
	})
	w.must(err)

	w.hosts[name] = host
	address, portText, _ := net.SplitHostPort(host.Address())
	port, _ := strconv.ParseInt(portText, 10, 32)

	spec := infrav1.LinuxMachineSpec{
		FleetName: fleetName, Address: address, Port: int32(port), User: user, SSHHostKeys: infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
		SSHKeySecretRef: infrav1.LocalSecretKeySelector{Name: "hosts", Key: "key"},
	}
	change(&spec)
	w.create(&infrav1.LinuxMachine{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
}

func (w *fixture) recordRun(name string, run machost.Run) {
	if run.Label == "probe" {
		return
	}

	if gate := w.countRun(name, run); gate != nil && !run.Ended {
		<-gate
	}
}

func (w *fixture) countRun(name string, run machost.Run) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()

	if run.Ended {
		w.busy[name]--
	} else {
		w.busy[name]++
	}

	if w.busy[name] <= 0 {
		delete(w.busy, name)
	}

	w.maxBusy = max(w.maxBusy, len(w.busy))

	return w.gates[run.Label]
}

// blockScripts blocks scripts with a label until the returned function is called.
func (w *fixture) blockScripts(label string) (callOff func()) {
	w.mu.Lock()
	defer w.mu.Unlock()

	gate := make(chan struct{})
	w.gates[label] = gate
	callOff = sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()

		delete(w.gates, label)
		close(gate)
	})
	w.t.Cleanup(callOff)

	return callOff
}

// resetMaxBusy restarts the count of hosts that are pushed to at the same time.
func (w *fixture) resetMaxBusy() {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.maxBusy = len(w.busy)
}

func (w *fixture) maxBusyHosts() int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.maxBusy
}

// startOperator starts the area's controllers, as a new process would.
func (w *fixture) startOperator() {
	w.t.Helper()

	w.registry = prometheus.NewRegistry()

	calls, err := metrics.NewCallMetrics(w.registry, nil)
	w.must(err)

	area := &hosts.Area{Config: w.cfg, Registry: w.registry, Clock: offsetClock{offset: w.clockOffset}, Calls: calls, Egress: w.egress}
	w.stop = env.StartManager(w.t, w.namespace, area.Setup)
}

// offsetClock is a clock that is ahead of the API server's clock.
type offsetClock struct {
	clock.RealClock

	offset time.Duration
}

func (a offsetClock) Now() time.Time { return a.RealClock.Now().Add(a.offset) }

// restart stops the operator and starts one with another agent.
func (w *fixture) restart(agent string) {
	w.t.Helper()
	w.stop()

	before := w.cfg
	w.writeConfig(agent)
	w.cfg.ProbeInterval = before.ProbeInterval
	w.startOperator()
}

func (w *fixture) getHost(name string) *infrav1.LinuxMachine {
	w.t.Helper()

	var out infrav1.LinuxMachine
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &out))

	return &out
}

func (w *fixture) getFleet() *infrav1.HostFleet { return w.getFleetByName(fleetName) }

func (w *fixture) getFleetByName(name string) *infrav1.HostFleet {
	w.t.Helper()

	var out infrav1.HostFleet
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &out))

	return &out
}

func (w *fixture) listHosts() []infrav1.LinuxMachine {
	w.t.Helper()

	var list infrav1.LinuxMachineList
	w.must(env.Client.List(w.t.Context(), &list, client.InNamespace(w.namespace)))

	return list.Items
}

// patchStatus changes the status of a host, as a person or an earlier operator would.
func (w *fixture) patchStatus(name string, change func(*infrav1.LinuxMachineStatus)) {
	w.t.Helper()

	m := w.getHost(name)
	base := m.DeepCopy()
	change(&m.Status)

	w.must(env.Client.Status().Patch(w.t.Context(), m, client.MergeFrom(base)))
}

func (w *fixture) patchFleet(change func(*infrav1.HostFleetSpec)) {
	w.t.Helper()

	f := w.getFleet()
	base := f.DeepCopy()
	change(&f.Spec)

	w.must(env.Client.Patch(w.t.Context(), f, client.MergeFrom(base)))
}

func (w *fixture) must(err error) {
	w.t.Helper()

	if err != nil {
		w.t.Fatal(err)
	}
}

// waitWhile waits until the condition is false for a host.
func (w *fixture) waitWhile(name, what string, is func(*infrav1.LinuxMachine) bool) {
	w.t.Helper()
	w.eventually(name+": "+what, func() string {
		if m := w.getHost(name); is(m) {
			return fmt.Sprintf("%+v", m.Status)
		}

		return ""
	})
}

// eventually waits until problem returns an empty string.
func (w *fixture) eventually(what string, problem func() string) {
	w.t.Helper()

	deadline := time.Now().Add(waitTimeout)
	last := ""

	for time.Now().Before(deadline) {
		start := time.Now()
		if last = problem(); last == "" {
			return
		}

		// Polling must not slow down the test machine.
		time.Sleep(max(pollInterval, 5*time.Since(start)))
	}

	w.t.Fatalf("timed out waiting until %s: %s", what, last)
}

// waitUntilConverged waits until all hosts have the configuration, and returns its hash.
func (w *fixture) waitUntilConverged(n int) string {
	w.t.Helper()

	hash := linux.New(w.planConfig()).Hash()

	w.eventually("converge", func() string {
		for _, m := range w.listHosts() {
			if m.Status.HostConfigHash != hash || !m.Status.Ready || !meta.IsStatusConditionTrue(m.Status.Conditions, "Ready") {
				return fmt.Sprintf("%s: %+v; fleet %+v", m.Name, m.Status, w.getFleet().Status)
			}
		}

		// Check the fleet after its hosts, because its status may be older than the drift of the hosts.
		f := w.getFleet()
		ready := meta.IsStatusConditionTrue(f.Status.Conditions, "Ready")

		if int(f.Status.Converged) != n || f.Status.HostConfigHash != hash || !ready || len(f.Status.Permits) > 0 {
			return fmt.Sprintf("fleet %+v", f.Status)
		}

		return ""
	})

	return hash
}

// scriptLabels returns the labels of the scripts that have ended on a host, except probes.
func (w *fixture) scriptLabels(name string) []string {
	var out []string

	for _, run := range w.hosts[name].Runs() {
		if run.Label != "probe" {
			out = append(out, run.Label)
		}
	}

	return out
}

// listEvents returns the events about an object. It fails the test if an event contains a secret.
func (w *fixture) listEvents(name string) []eventsv1.Event {
	w.t.Helper()

	var list eventsv1.EventList
	w.must(env.Client.List(w.t.Context(), &list, client.InNamespace(w.namespace)))

	var out []eventsv1.Event

	for _, event := range list.Items {
		for _, secret := range []string{"kubelet-token", "PRIVATE KEY"} {
			if strings.Contains(event.Note, secret) {
				w.t.Errorf("event %s contains a secret: %s", event.Reason, event.Note)
			}
		}

		if event.Regarding.Name == name {
			out = append(out, event)
		}
	}

	return out
}

// eventNotes returns the notes of the events about an object that have a reason.
func (w *fixture) eventNotes(name, reason string) string {
	w.t.Helper()

	var out []string

	for _, event := range w.listEvents(name) {
		if event.Reason == reason {
			out = append(out, event.Note)
		}
	}

	return strings.Join(out, "\n")
}

// eventReasons returns the reasons of the events about an object.
func (w *fixture) eventReasons(name string) []string {
	w.t.Helper()

	var out []string
	for _, event := range w.listEvents(name) {
		out = append(out, event.Reason)
	}

	slices.Sort(out)

	return slices.Compact(out)
}
