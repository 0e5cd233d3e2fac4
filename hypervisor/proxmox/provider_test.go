// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	gopve "github.com/luthermonson/go-proxmox"
	"go.uber.org/goleak"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	operatorUID = "11111111-2222-3333-4444-555555555555"
	gib         = int64(1) << 30
	patience    = time.Minute
	pause       = 10 * time.Millisecond // between two looks
)

// fastModel is the default cluster without delays and without lag.
func fastModel() pve.Model {
	m := pve.DefaultModel()
	m.StatusLag = 0
	m.Outage = pve.Outage{}

	return m
}

// waker collects wakes.
type waker struct {
	mu     sync.Mutex
	count  map[string]int
	signal chan struct{}
}

func newWaker() *waker { return &waker{count: map[string]int{}, signal: make(chan struct{}, 1)} }

func (w *waker) wake(o hypervisor.Owner) {
	w.mu.Lock()
	w.count[o.UID]++
	w.mu.Unlock()

	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func config(s *pve.Server) hypervisor.Config {
	tls, err := hypervisor.TLSConfig(&v1alpha1.HypervisorTLS{Fingerprint: s.Fingerprint()}, nil, nil)
	if err != nil {
		panic(err)
	}

	return hypervisor.Config{
		Name: "lab", Endpoint: s.URL() + "/api2/json", TLS: tls, ResourcePool: pve.DefaultPool,
		Credentials: hypervisor.Credentials{TokenID: pve.DefaultTokenID, TokenSecret: pve.DefaultSecret},
		IDMin:       100000, IDMax: 100999, ClonesPerStorage: 2, CallsPerNode: 4,
	}
}

func options(wake func(hypervisor.Owner)) hypervisor.Options {
	return hypervisor.Options{
		OperatorUID: operatorUID, Wake: wake,
		TaskInterval: pause, ListInterval: pause,
	}
}

func connect(t testing.TB, s *pve.Server, change ...func(*hypervisor.Config, *hypervisor.Options)) hypervisor.Connection {
	t.Helper()

	c, o := config(s), options(newWaker().wake)
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

func spec(n int) hypervisor.MachineSpec {
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

// further reserves an id, or has the machine made, and started unless it is on standby.
func further(
	ctx context.Context, p hypervisor.Provider, s *hypervisor.MachineSpec,
) (hypervisor.Machine, error) {
	switch {
	case s.ID == 0:
		reserved, err := p.Reserve(ctx, *s)
		if err == nil {
			s.ID, s.Node = reserved.ID, reserved.Node
		}

		return hypervisor.Machine{}, err
	case s.Standby:
		return p.Ensure(ctx, *s)
	default:
		return p.Start(ctx, *s, seed)
	}
}

// create goes on until the machine runs.
func create(t testing.TB, p hypervisor.Provider, s hypervisor.MachineSpec) hypervisor.Machine {
	t.Helper()

	deadline := time.Now().Add(patience)

	for {
		m, err := further(t.Context(), p, &s)
		if hypervisor.Is(err, hypervisor.IDTaken) {
			s.ID, s.Node = 0, "" // another place is reserved, as the operator does

			continue
		}

		if err != nil && !transient(err) {
			t.Fatalf("create %s: %v", s.Owner.Name, err)
		}

		if m.State == hypervisor.StateRunning && err == nil {
			return m
		}

		if time.Now().After(deadline) {
			t.Fatalf("create %s: still %s %q (%v)", s.Owner.Name, m.State, m.Message, err)
		}

		time.Sleep(pause)
	}
}

func transient(err error) bool {
	switch hypervisor.KindOf(err) {
	case "", hypervisor.Busy, hypervisor.UnknownOutcome, hypervisor.Unavailable, hypervisor.NoCapacity:
		return true
	default:
		return false
	}
}

// remove calls Delete until nothing is left.
func remove(t testing.TB, p hypervisor.Provider, ref hypervisor.MachineRef) {
	t.Helper()

	deadline := time.Now().Add(patience)

	for {
		err := p.Delete(t.Context(), ref)
		if hypervisor.Is(err, hypervisor.NotFound) {
			return
		}

		if err != nil && !transient(err) {
			t.Fatalf("delete %s: %v", ref.Owner.Name, err)
		}

		if time.Now().After(deadline) {
			t.Fatalf("delete %s: %v", ref.Owner.Name, err)
		}

		time.Sleep(pause)
	}
}

// A life's calls, in order: what a machine costs, and that each change is preceded by a
// look at whose it is.
func TestCallsOfALife(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	p := connect(t, s)
	sp := spec(1)
	m := create(t, p, sp)
	remove(t, p, hypervisor.MachineRef{ID: m.ID, Owner: sp.Owner})

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

// The guest's agent is asked for an address, when the machine's budget allows it.
func TestAddress(t *testing.T) { //nolint:paralleltest // it counts calls, and where much runs beside it one is made twice
	m := fastModel()
	m.Delays.Agent = time.Millisecond

	s := pvetest.New(t, m)
	p := connect(t, s, fast(t))
	sp := spec(1)
	made := create(t, p, sp)
	ref := hypervisor.MachineRef{ID: made.ID, Owner: sp.Owner}
	deadline := time.Now().Add(patience)

	for {
		got, err := p.Get(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}

		if got.IP != "" {
			break
		}

		if time.Now().After(deadline) {
			t.Fatal("no address was found")
		}

		time.Sleep(pause)
	}

	s.PowerOff(made.ID)
	remove(t, p, ref)

	byMachine, clones, uploads, _ := costs(s)

	total := clones + uploads
	for _, n := range byMachine {
		total += n
	}

	if total > callsPerMachine {
		t.Errorf("the machine cost %d calls", total)
	}
}

func description(vm pve.VMState) (string, bool) {
	text, ok := vm.Config["description"]

	return text, ok
}

// root is a client with all rights, for what others do.
func root(t testing.TB, s *pve.Server) *gopve.Client {
	t.Helper()

	return gopve.NewClient(s.URL()+"/api2/json", gopve.WithHTTPClient(s.HTTPClient()),
		gopve.WithCredentials(&gopve.Credentials{Username: pve.RootUser, Password: pve.DefaultPassword}), gopve.WithEagerAuth())
}

// occupy clones a machine of somebody else's to an id.
func occupy(t testing.TB, s *pve.Server, id int) {
	t.Helper()

	var upid string
	if err := root(t, s).Post(t.Context(), "/nodes/pve1/qemu/9001/clone",
		map[string]any{"newid": id, "name": "somebody-elses"}, &upid); err != nil {
		t.Fatal(err)
	}

	await(t, s, upid)
}

// await waits for the end of a task.
func await(t testing.TB, s *pve.Server, upid string) {
	t.Helper()

	deadline := time.Now().Add(patience)

	for time.Now().Before(deadline) {
		for _, task := range s.Snapshot().Tasks {
			if task.UPID == upid && task.Exit != "" {
				return
			}
		}

		time.Sleep(pause)
	}

	t.Fatalf("task %s has not ended", upid)
}

func newConnection(c hypervisor.Config, o hypervisor.Options) (hypervisor.Connection, error) {
	return proxmox.New(c, o)
}
