// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt/crds"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt/kubevirttest"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/progress"
	"github.com/hyperfleet/hyperfleet/test/scrape"
	"github.com/hyperfleet/hyperfleet/test/upstream"
)

const (
	// waitTimeout is the limit of a wait. Most waits take seconds on two cores.
	waitTimeout  = 2 * time.Minute
	pollInterval = 100 * time.Millisecond

	networkDataFile = "openstack/latest/network_data.json"
)

// fixture is a namespace with a simulated KubeVirt, and an operator that is started and killed.
type fixture struct {
	t testing.TB
	// logf prints a line of progress.
	logf      func(format string, args ...any)
	namespace string
	virt      *kubevirt.Cluster

	kubeconfig, config, log string
	metrics                 string
	process                 *procrun.Process

	mu sync.Mutex
	// running has the name of the running machine that uses each address.
	running map[string]string
	// booted has the addresses of each machine at its last boot.
	booted map[string][]string
}

// newBareFixture creates a fixture with the CRDs of KubeVirt, but without a simulator. The first call installs the
// CRDs while the operator runs.
func newBareFixture(t testing.TB) *fixture {
	t.Helper()

	w := &fixture{
		t: t, logf: progress.NewPrinter(t), namespace: env.Namespace(t), running: map[string]string{}, booted: map[string][]string{},
	}
	w.writeConfig()
	t.Cleanup(w.kill)

	w.start()
	w.eventually("the area logs that it is off, or starts", func() bool {
		return strings.Contains(w.readLog(), "area is off until the kinds that it needs are installed") || w.hasAreaStarted()
	})

	w.must(crds.Install(t.Context(), env.Config))

	w.eventually("the area starts", w.hasAreaStarted)

	return w
}

// newFixture creates a fixture with a simulated KubeVirt.
func newFixture(t testing.TB, delays kubevirt.Delays) *fixture {
	t.Helper()

	w := newBareFixture(t)

	nodes := []kubevirt.Node{}
	for i := range 4 {
		nodes = append(nodes, kubevirt.Node{Name: fmt.Sprintf("%s-%d", w.namespace, i), CPU: 4096, Memory: resource.MustParse("64Ti")})
	}

	w.virt = kubevirttest.New(t, env.Config, kubevirt.Options{
		Namespaces: []string{w.namespace}, Delays: delays, Guest: w.runGuest, Nodes: nodes,
		Webhook: upstream.StartVirtAPI(t),
	})

	return w
}

func (w *fixture) hasAreaStarted() bool { return strings.Contains(w.readLog(), "area starts") }

// runGuest is the guest of a machine: it reads its addresses, and uses them until it is powered off.
func (w *fixture) runGuest(g kubevirt.Guest) {
	addresses, err := parseAddresses(g.Drive[networkDataFile])
	if err != nil {
		w.t.Errorf("machine %s: %v", g.Name, err)
	}

	w.mu.Lock()
	w.booted[g.Name] = addresses

	for _, a := range addresses {
		if other, taken := w.running[a]; taken {
			w.t.Errorf("%s runs with %s, which %s uses too", g.Name, a, other)
		}

		w.running[a] = g.Name
	}
	w.mu.Unlock()

	<-g.Context.Done()

	w.mu.Lock()
	defer w.mu.Unlock()

	for _, a := range addresses {
		delete(w.running, a)
	}
}

// parseAddresses returns the addresses in a config drive's network data, or none for a machine that uses DHCP.
func parseAddresses(data []byte) ([]string, error) {
	if data == nil {
		return nil, nil
	}

	network, format, err := netdata.Parse(data)
	if err != nil {
		return nil, err
	}

	link := network.Links[0]
	if format != netdata.FormatOpenStack || link.Name != "eno101" || link.MAC == "" || len(link.Routes) != 2 {
		return nil, fmt.Errorf("unexpected network data: %s", data)
	}

	var out []string
	for _, a := range link.Addresses {
		out = append(out, a.String())
	}

	return out, nil
}

// writeConfig writes the operator's configuration.
func (w *fixture) writeConfig() {
	dir := w.t.TempDir()
	w.kubeconfig = env.Kubeconfig(w.t, env.ServiceAccount(w.t, "hyperfleet-system", "hyperfleet-networking"))
	w.config, w.log, w.metrics = filepath.Join(dir, "operator.yaml"), filepath.Join(dir, "operator.log"), loopback.Address(w.t)

	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "config.hyperfleet.io/v1alpha1", "kind": "OperatorConfig", "namespace": "hyperfleet-system",
		"controllers": []string{"networking"},
		"log":         map[string]any{"level": "INFO", "format": "text"},
		"metrics":     map[string]any{"bindAddress": w.metrics},
		"health":      map[string]any{"bindAddress": "0"},
		"webhooks":    map[string]any{"bindAddress": "0"},
		// A killed operator leaves its Lease behind.
		"leaderElection": map[string]any{"enabled": true, "leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "200ms"},
	})
	w.must(err)

	w.must(os.WriteFile(w.config, text, 0o600))
}

// start starts an operator.
func (w *fixture) start() {
	w.t.Helper()

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: binary, Args: []string{"operator", "--config", w.config, "--kubeconfig", w.kubeconfig}, LogPath: w.log,
	})
	w.must(err)

	w.process = process
}

// runDoctor returns the output of `hyperfleet doctor` for the fixture's namespace.
func (w *fixture) runDoctor() string {
	w.t.Helper()

	output, err := exec.CommandContext(w.t.Context(), binary, "doctor", "--namespace", w.namespace,
		"--kubeconfig", env.Kubeconfig(w.t, env.Config)).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v", output, err)
	}

	return string(output)
}

// kill kills the operator with SIGKILL.
func (w *fixture) kill() {
	if w.process != nil {
		if err := w.process.Kill(); err != nil {
			w.t.Logf("kill the operator: %v", err)
		}
	}

	if w.t.Failed() {
		log := w.readLog()
		w.t.Logf("the end of the operator's log:\n%s", log[max(0, len(log)-8000):])
	}
}

// stop stops the operator, and waits until it has ended.
func (w *fixture) stop() {
	w.t.Helper()
	w.must(w.process.Stop())
}

func (w *fixture) readLog() string {
	text, err := os.ReadFile(w.log)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}

	return string(text)
}

// readMetric returns the value of a series, or -1 if it does not exist.
func (w *fixture) readMetric(name, labels string) float64 {
	value, err := scrape.Sum(w.t.Context(), "http://"+w.metrics+"/metrics", name, labels)
	if err != nil {
		return -1
	}

	return value
}

func (w *fixture) eventually(what string, holds func() bool) {
	w.t.Helper()

	deadline := time.Now().Add(waitTimeout)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("timed out waiting for: %s\n%s", what, w.describe())
		}

		time.Sleep(pollInterval)
	}
}

// describe formats the conditions of pools and machines.
func (w *fixture) describe() string {
	var out strings.Builder

	var pools infrav1.KubevirtNodePoolList
	if err := env.Client.List(context.Background(), &pools, client.InNamespace(w.namespace)); err != nil {
		return err.Error()
	}

	for i := range pools.Items {
		pool := &pools.Items[i]
		fmt.Fprintf(&out, "pool %s: %d of %d machines, %d ready, addresses %+v\n", pool.Name,
			pool.Status.Replicas, pool.Spec.Replicas, pool.Status.ReadyReplicas, pool.Status.Addresses)

		for _, c := range pool.Status.Conditions {
			fmt.Fprintf(&out, "  %s %s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}

	counts := map[string]int{}
	for _, m := range w.listMachines() {
		why := ""
		for _, c := range m.Status.Conditions {
			if c.Type == "Ready" {
				why = c.Reason + ": " + c.Message
			}
		}

		counts[string(m.Status.Phase)+" "+why]++
	}

	for _, words := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&out, "%d machines: %s\n", counts[words], words)
	}

	return out.String()
}

func (w *fixture) create(object client.Object) {
	w.t.Helper()

	object.SetNamespace(w.namespace)

	w.must(env.Client.Create(w.t.Context(), object))
}

// updatePool updates a pool.
func (w *fixture) updatePool(name string, change func(*infrav1.KubevirtNodePoolSpec)) {
	w.t.Helper()

	for {
		pool := w.getPool(name)
		change(&pool.Spec)

		err := env.Client.Update(w.t.Context(), pool)
		if err == nil {
			return
		}

		if !apierrors.IsConflict(err) {
			w.t.Fatal(err)
		}
	}
}

func (w *fixture) getPool(name string) *infrav1.KubevirtNodePool {
	w.t.Helper()

	var pool infrav1.KubevirtNodePool
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &pool))

	return &pool
}

// conditionStatus returns the status of a pool's condition.
func (w *fixture) conditionStatus(pool, name string) metav1.ConditionStatus {
	for _, c := range w.getPool(pool).Status.Conditions {
		if c.Type == name {
			return c.Status
		}
	}

	return ""
}

// listMachines returns all machines by name.
func (w *fixture) listMachines() map[string]infrav1.KubevirtMachine {
	var list infrav1.KubevirtMachineList
	w.must(env.Client.List(context.Background(), &list, client.InNamespace(w.namespace)))

	out := map[string]infrav1.KubevirtMachine{}
	for _, m := range list.Items {
		out[m.Name] = m
	}

	return out
}

// listAddresses returns the addresses in the status of each machine, and fails the test if two machines have the
// same address.
func (w *fixture) listAddresses() map[string][]string {
	w.t.Helper()

	out, owners := map[string][]string{}, map[string]string{}

	for name, m := range w.listMachines() {
		for _, a := range m.Status.AllocatedBootstrapAddresses["eno101"] {
			if other, taken := owners[a]; taken {
				w.t.Errorf("%s is in the status of %s and of %s", a, name, other)
			}

			owners[a] = name
			out[name] = append(out[name], a)
		}
	}

	return out
}

// countReady returns the number of machines that are ready.
func (w *fixture) countReady() int {
	n := 0

	for _, m := range w.listMachines() {
		if m.Status.Ready {
			n++
		}
	}

	return n
}
