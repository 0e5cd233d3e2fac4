// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	gopve "github.com/luthermonson/go-proxmox"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	operatorUID     = "11111111-2222-3333-4444-555555555555"
	gib             = int64(1) << 30
	testTimeout     = time.Minute
	attemptInterval = 10 * time.Millisecond // between two attempts
)

// fastModel returns the default cluster without delays and without lag.
func fastModel() pve.Model {
	m := pve.DefaultModel()
	m.StatusLag = 0
	m.Outage = pve.Outage{}

	return m
}

func newConfig(s *pve.Server) hypervisor.Config {
	tls, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{Fingerprint: s.Fingerprint()}, nil, nil)
	if err != nil {
		panic(err)
	}

	return hypervisor.Config{
		Name: "lab", Endpoint: s.URL() + "/api2/json", TLS: tls, ResourcePool: pve.DefaultPool,
		Credentials: hypervisor.Credentials{TokenID: pve.DefaultTokenID, TokenSecret: pve.DefaultSecret},
		IDMin:       100000, IDMax: 100999, ClonesPerStorage: 2, CallsPerNode: 4,
	}
}

// fastOptions returns options with short intervals and a clock that runs faster than real time.
func fastOptions(t testing.TB) hypervisor.Options {
	t.Helper()

	return hypervisor.Options{
		OperatorUID: operatorUID, Wake: func(hypervisor.Owner) {}, Clock: conformance.FastClock(t, conformance.Speed),
		TaskInterval: conformance.Speed * attemptInterval / 2, ListInterval: conformance.Speed * attemptInterval / 2,
	}
}

// useRealTime sets the operator's default intervals.
func useRealTime(_ *hypervisor.Config, o *hypervisor.Options) {
	o.Clock, o.TaskInterval, o.ListInterval = clock.RealClock{}, 0, 0
}

func connect(t testing.TB, s *pve.Server, change ...func(*hypervisor.Config, *hypervisor.Options)) hypervisor.Connection {
	t.Helper()

	c, o := newConfig(s), fastOptions(t)
	for _, f := range change {
		f(&c, &o)
	}

	p, err := proxmox.New(c, o)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(p.Close)

	return p
}

func newSpec(n int) hypervisor.MachineSpec {
	uid := fmt.Sprintf("00000000-0000-4000-8000-%012d", n)

	return hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: fmt.Sprintf("claim-%d", n), UID: uid, Pool: "linux"},
		Hostname: fmt.Sprintf("claim-%d", n),
		Template: hypervisor.TemplateRef{Name: pve.DefaultTemplate},
		Shape:    hypervisor.Shape{CPU: 2, Memory: 2 * gib, Linked: true, CloudInitSource: hypervisor.SourceNoCloud},
	}
}

func seed(context.Context) (hypervisor.Seed, error) {
	return hypervisor.Seed{
		UserData: []byte("#cloud-config\n{}\n"), MetaData: []byte("instance-id: x\n"), NetworkConfig: []byte("version: 2\n"),
	}, nil
}

// reserve returns the spec of a machine with a reserved ID and node.
func reserve(t testing.TB, p hypervisor.Provider, s hypervisor.MachineSpec) hypervisor.MachineSpec {
	t.Helper()

	reserved, err := p.Reserve(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}

	s.ID, s.Node = reserved.ID, reserved.Node

	return s
}

// create calls Ensure or Start until the machine is prepared or runs, and returns its spec with the ID.
func create(t testing.TB, p hypervisor.Provider, s hypervisor.MachineSpec) (hypervisor.Machine, hypervisor.MachineSpec) {
	t.Helper()

	want := hypervisor.StateRunning
	if s.Standby {
		want = hypervisor.StatePrepared
	}

	m, err := conformance.Create(t.Context(), p, &s, seed)
	if err != nil || m.State != want {
		t.Fatalf("create %s: it is %s (%v)", s.Owner.Name, m.State, err)
	}

	return m, s
}

// remove calls Delete until nothing is left.
func remove(t testing.TB, p hypervisor.Provider, s hypervisor.MachineSpec) {
	t.Helper()

	if err := conformance.Delete(t.Context(), p, newRef(s)); err != nil {
		t.Fatal(err)
	}
}

func newRef(s hypervisor.MachineSpec) hypervisor.MachineRef {
	return hypervisor.MachineRef{ID: s.ID, Owner: s.Owner}
}

// expectNothingLeft checks that no machine and no cloud-init ISO is left.
func expectNothingLeft(t testing.TB, s *pve.Server) {
	t.Helper()

	if left := s.Snapshot(); len(left.CreatedVMs())+len(left.ISOs()) > 0 {
		t.Errorf("left behind: %+v %+v", left.CreatedVMs(), left.ISOs())
	}
}

// countCalls counts the calls with this path, and with this method if the method is not empty.
func countCalls(s *pve.Server, method, path string) int {
	n := 0

	for _, c := range s.Calls() {
		if (method == "" || c.Method == method) && strings.Contains(c.Path, path) {
			n++
		}
	}

	return n
}

// The calls of one life, in their order. They show the cost of a machine, and that the ownership record is
// read before each change.
func TestCallsOfLifecycle(t *testing.T) {
	t.Parallel()

	const slower = 10 // otherwise the ownership must be verified twice before the machine is stopped and destroyed

	s := pvetest.New(t, fastModel())
	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) { o.Clock = conformance.FastClock(t, slower) })
	m, sp := create(t, p, newSpec(1))
	remove(t, p, sp)

	want := []string{
		"POST /nodes/{node}/qemu/{vmid}/clone",
		"POST /nodes/{node}/storage/{storage}/upload",
		"GET /nodes/{node}/qemu/{vmid}/config",
		"PUT /nodes/{node}/qemu/{vmid}/config",
		"POST /nodes/{node}/qemu/{vmid}/status/start",
		"GET /nodes/{node}/qemu/{vmid}/config",
		"POST /nodes/{node}/qemu/{vmid}/status/stop",
		"DELETE /nodes/{node}/qemu/{vmid}",
		"DELETE /nodes/{node}/storage/{storage}/content/{volume}",
	}

	var got []string

	for _, c := range s.Calls() {
		own := c.VMID == m.ID || c.Method != http.MethodGet
		if !own {
			continue
		}

		req, err := http.NewRequestWithContext(t.Context(), c.Method, "https://pve/api2/json"+c.Path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}

		got = append(got, proxmox.Operation(req))
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// The provider requests an address from the guest agent within the call budget of the machine.
func TestAddress(t *testing.T) { //nolint:paralleltest // it counts calls, and one call is repeated under high load
	m := fastModel()
	m.Delays.Agent = time.Millisecond

	s := pvetest.New(t, m)
	p := connect(t, s)
	made, sp := create(t, p, newSpec(1))

	timing.WaitUntil(t, "it has an address", func() bool {
		got, err := p.Get(t.Context(), newRef(sp))
		if err != nil {
			t.Fatal(err)
		}

		return got.IP != ""
	})

	s.PowerOff(made.ID)
	remove(t, p, sp)

	byMachine, clones, uploads, _ := sumCalls(s)

	total := clones + uploads
	for _, n := range byMachine {
		total += n
	}

	if total > callsPerMachine {
		t.Errorf("the machine cost %d calls", total)
	}
}

func getDescription(vm pve.VMState) (string, bool) {
	text, ok := vm.Config["description"]

	return text, ok
}

// newRootClient returns a client with all privileges for actions of other users.
func newRootClient(t testing.TB, s *pve.Server) *gopve.Client {
	t.Helper()

	return gopve.NewClient(s.URL()+"/api2/json", gopve.WithHTTPClient(s.HTTPClient()),
		gopve.WithCredentials(&gopve.Credentials{Username: pve.RootUser, Password: pve.DefaultPassword}), gopve.WithEagerAuth())
}

// occupyID clones a machine of another user to an ID.
func occupyID(t testing.TB, s *pve.Server, id int) {
	t.Helper()

	var upid string
	if err := newRootClient(t, s).Post(t.Context(), "/nodes/pve1/qemu/9001/clone",
		map[string]any{"newid": id, "name": "somebody-elses"}, &upid); err != nil {
		t.Fatal(err)
	}

	waitForTask(t, s, upid)
}

// waitForTask waits for the end of a task.
func waitForTask(t testing.TB, s *pve.Server, upid string) {
	t.Helper()

	timing.WaitUntil(t, "task "+upid+" has ended", func() bool {
		return slices.ContainsFunc(s.Snapshot().Tasks, func(task pve.TaskState) bool { return task.UPID == upid && task.Exit != "" })
	})
}
