// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"log/slog"
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
	"sigs.k8s.io/controller-runtime/pkg/log"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	kitlog "github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	patience = 5 * time.Minute
	lookAt   = 20 * time.Millisecond

	user       = "hyperfleet"
	fleetName  = "racks"
	kubeconfig = "users: [{user: {token: kubelet-token-of-the-test}}]"
)

var env *kube.Env

func TestMain(m *testing.M) {
	log.SetLogger(kitlog.Logr(slog.New(slog.DiscardHandler)))

	os.Exit(kube.Run(m, func(e *kube.Env) { env = e }, kube.WithControllerManager(), kube.WithCRDs("../deploy/crds"), kube.WithScheme(infrav1.AddToScheme),
		kube.WithUses("../test/access/testdata/uses.yaml", "hosts", "hyperfleet-hosts")))
}

// world is a namespace with a fleet of light Linux hosts, and the area's controllers, which
// come and go.
type world struct {
	t         *testing.T
	namespace string
	cfg       config.Hosts
	// key to log in with, and the line that lets it in.
	key, authorized string
	hosts           map[string]*machost.Host
	registry        *prometheus.Registry
	// reach is how far calls to clouds go.
	reach *httpbound.Reach
	// ahead is how far the operator's clock is ahead.
	ahead time.Duration
	stop  func()

	mu sync.Mutex
	// busy counts, by host, the scripts that run and are no probes; most is the highest
	// number of hosts there was.
	busy map[string]int
	most int
	// gates hold up scripts by their label until they are closed.
	gates map[string]chan struct{}
}

func newWorld(t *testing.T, n int, rollout infrav1.HostRollout) *world {
	t.Helper()

	w := &world{t: t, namespace: env.Namespace(t), hosts: map[string]*machost.Host{}, busy: map[string]int{}, stop: func() {}, gates: map[string]chan struct{}{}}
	private, line := machosttest.Key(t)
	w.key, w.authorized = private.Reveal(), line
	w.configure("agent one")
	w.create(&infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Name: fleetName}, Spec: infrav1.HostFleetSpec{HostKind: linux.Name, Rollout: rollout},
	})
	w.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "hosts"}, StringData: map[string]string{"key": w.key, "kubeconfig": kubeconfig},
	})

	for i := range n {
		w.host(fmt.Sprintf("rack-%02d", i))
	}

	t.Cleanup(func() {
		w.stop()

		for name, host := range w.hosts {
			if unknown := host.Unknown(); len(unknown) > 0 {
				t.Errorf("%s does not know %v", name, unknown)
			}

			if err := host.Close(); err != nil {
				t.Error(err)
			}
		}
	})

	return w
}

// configure writes the operator's configuration, with an agent of its own.
func (w *world) configure(agent string) {
	w.t.Helper()

	file, exporter := w.program("agent", []byte(agent)), w.program("exporter", []byte("exporter"))

	w.cfg = config.Default().Hosts
	w.cfg.ProbeInterval = 0
	w.cfg.RetryBase, w.cfg.RetryCap = 50*time.Millisecond, time.Second
	w.cfg.Linux = config.LinuxHosts{
		AgentFile: file, NodeExporterFile: exporter, MaxPods: 4, VMCIDR: "192.168.122.0/24",
	}
}

// program writes a file that the operator brings to hosts.
func (w *world) program(name string, content []byte) string {
	w.t.Helper()

	path := filepath.Join(w.t.TempDir(), name)
	w.must(os.WriteFile(path, content, 0o600))

	return path
}

func (w *world) create(obj client.Object) {
	w.t.Helper()
	obj.SetNamespace(w.namespace)

	w.must(env.Client.Create(w.t.Context(), obj))
}

// host starts a host and makes its object.
func (w *world) host(name string) {
	w.t.Helper()
	w.hostWith(name, func(spec *infrav1.LinuxMachineSpec) {
		spec.KubeconfigSecretRef = infrav1.LocalSecretKeySelector{Name: "hosts", Key: "kubeconfig"}
	})
}

// hostWith starts a host and makes its object, which names no kubeconfig.
func (w *world) hostWith(name string, change func(*infrav1.LinuxMachineSpec)) {
	w.t.Helper()

	host, err := machost.Start(w.t.Context(), machost.Options{
		Name: name, System: machost.Linux, Light: true, User: user, AuthorizedKeys: []string{w.authorized},
		Watch: func(run machost.Run) { w.watch(name, run) },
	})
	w.must(err)

	w.hosts[name] = host
	address, portText, _ := net.SplitHostPort(host.Address())
	port, _ := strconv.ParseInt(portText, 10, 32)

	spec := infrav1.LinuxMachineSpec{
		FleetName: fleetName, Address: address, Port: int32(port), User: user, SSHHostKeyChecking: infrav1.HostKeyAcceptNew,
		SSHKeySecretRef: infrav1.LocalSecretKeySelector{Name: "hosts", Key: "key"},
	}
	change(&spec)
	w.create(&infrav1.LinuxMachine{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
}

func (w *world) watch(name string, run machost.Run) {
	if run.Label == "probe" {
		return
	}

	if gate := w.count(name, run); gate != nil && !run.Ended {
		<-gate
	}
}

func (w *world) count(name string, run machost.Run) chan struct{} {
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

	w.most = max(w.most, len(w.busy))

	return w.gates[run.Label]
}

// hold has the scripts of a label hang until it is called off.
func (w *world) hold(label string) (callOff func()) {
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

// forgetMost starts to count hosts that are pushed to at the same time anew.
func (w *world) forgetMost() {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.most = len(w.busy)
}

func (w *world) mostBusy() int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.most
}

// start starts the area as a process of its own would.
func (w *world) start() {
	w.t.Helper()

	w.registry = prometheus.NewRegistry()

	calls, err := metrics.NewCalls(w.registry, nil)
	w.must(err)

	area := &hosts.Area{Config: w.cfg, Registry: w.registry, Clock: ahead{by: w.ahead}, Calls: calls, Reach: w.reach}
	w.stop = env.Manage(w.t, w.namespace, area.Setup)
}

// ahead is a clock that is ahead of the API server's.
type ahead struct {
	clock.RealClock

	by time.Duration
}

func (a ahead) Now() time.Time { return a.RealClock.Now().Add(a.by) }

// restart is another version of the operator, with another agent.
func (w *world) restart(agent string) {
	w.t.Helper()
	w.stop()

	before := w.cfg
	w.configure(agent)
	w.cfg.ProbeInterval = before.ProbeInterval
	w.start()
}

func (w *world) get(name string) *infrav1.LinuxMachine {
	w.t.Helper()

	var out infrav1.LinuxMachine
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &out))

	return &out
}

func (w *world) fleet() *infrav1.HostFleet { return w.fleetOf(fleetName) }

func (w *world) fleetOf(name string) *infrav1.HostFleet {
	w.t.Helper()

	var out infrav1.HostFleet
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &out))

	return &out
}

func (w *world) all() []infrav1.LinuxMachine {
	w.t.Helper()

	var list infrav1.LinuxMachineList
	w.must(env.Client.List(w.t.Context(), &list, client.InNamespace(w.namespace)))

	return list.Items
}

// note changes the status of a host, as a person or an earlier operator did.
func (w *world) note(name string, change func(*infrav1.LinuxMachineStatus)) {
	w.t.Helper()

	m := w.get(name)
	base := m.DeepCopy()
	change(&m.Status)

	w.must(env.Client.Status().Patch(w.t.Context(), m, client.MergeFrom(base)))
}

func (w *world) patchFleet(change func(*infrav1.HostFleetSpec)) {
	w.t.Helper()

	f := w.fleet()
	base := f.DeepCopy()
	change(&f.Spec)

	w.must(env.Client.Patch(w.t.Context(), f, client.MergeFrom(base)))
}

func (w *world) must(err error) {
	w.t.Helper()

	if err != nil {
		w.t.Fatal(err)
	}
}

// waitWhile waits while something is so of a host.
func (w *world) waitWhile(name, what string, is func(*infrav1.LinuxMachine) bool) {
	w.t.Helper()
	w.eventually(name+": "+what, func() string {
		if m := w.get(name); is(m) {
			return fmt.Sprintf("%+v", m.Status)
		}

		return ""
	})
}

// eventually waits until there is nothing to say any more.
func (w *world) eventually(what string, problem func() string) {
	w.t.Helper()

	deadline := time.Now().Add(patience)
	said := ""

	for time.Now().Before(deadline) {
		start := time.Now()
		if said = problem(); said == "" {
			return
		}

		// Looking must not be what the machine is busy with.
		time.Sleep(max(lookAt, 5*time.Since(start)))
	}

	w.t.Fatalf("%s: %s", what, said)
}

// converged waits until all hosts have one configuration, and gives its hash.
func (w *world) converged(n int) string {
	w.t.Helper()

	hash := linux.New(w.plan()).Hash()

	w.eventually("converge", func() string {
		for _, m := range w.all() {
			if m.Status.HostConfigHash != hash || !m.Status.Ready || !meta.IsStatusConditionTrue(m.Status.Conditions, "Ready") {
				return fmt.Sprintf("%s: %+v; fleet %+v", m.Name, m.Status, w.fleet().Status)
			}
		}

		// The fleet after its hosts: before, it may not have heard yet that they had drifted.
		f := w.fleet()
		ready := meta.IsStatusConditionTrue(f.Status.Conditions, "Ready")

		if int(f.Status.Converged) != n || f.Status.HostConfigHash != hash || !ready || len(f.Status.Permits) > 0 {
			return fmt.Sprintf("fleet %+v", f.Status)
		}

		return ""
	})

	return hash
}

// runs gives the labels of the scripts that a host has ended, probes apart.
func (w *world) runs(name string) []string {
	var out []string

	for _, run := range w.hosts[name].Runs() {
		if run.Label != "probe" {
			out = append(out, run.Label)
		}
	}

	return out
}

// eventsOf gives the events about an object. None has a secret.
func (w *world) eventsOf(name string) []eventsv1.Event {
	w.t.Helper()

	var list eventsv1.EventList
	w.must(env.Client.List(w.t.Context(), &list, client.InNamespace(w.namespace)))

	var out []eventsv1.Event

	for _, event := range list.Items {
		for _, secret := range []string{"kubelet-token", "PRIVATE KEY"} {
			if strings.Contains(event.Note, secret) {
				w.t.Errorf("event %s has a secret: %s", event.Reason, event.Note)
			}
		}

		if event.Regarding.Name == name {
			out = append(out, event)
		}
	}

	return out
}

// notes gives what the events of a reason about an object say.
func (w *world) notes(name, reason string) string {
	w.t.Helper()

	var out []string

	for _, event := range w.eventsOf(name) {
		if event.Reason == reason {
			out = append(out, event.Note)
		}
	}

	return strings.Join(out, "\n")
}

// events gives the reasons of the events about an object.
func (w *world) events(name string) []string {
	w.t.Helper()

	var out []string
	for _, event := range w.eventsOf(name) {
		out = append(out, event.Reason)
	}

	slices.Sort(out)

	return slices.Compact(out)
}
