// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance/random"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
	"github.com/hyperfleet/hyperfleet/kit/property"
	testlibvirt "github.com/hyperfleet/hyperfleet/test/libvirt"
)

const (
	mebibyte = 1 << 20
	diskSize = 8 * mebibyte
	template = "template.qcow2"
	idMin    = 100000
	// idsPerCase is the number of IDs of a case. The cases share a host, on which names are unique.
	idsPerCase = 100
)

var (
	// shared is the host of most tests.
	shared *testlibvirt.Host
	// cases counts the cases.
	cases atomic.Int64
)

func TestMain(m *testing.M) {
	testlibvirt.Main(m, func(h *testlibvirt.Host) { shared = h })
}

// TestConformance does not run in parallel with other tests, because it measures the free memory of the host.
func TestConformance(t *testing.T) { //nolint:paralleltest // see above
	conformance.Run(t, newHarness)
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	conformance.RunCrashes(t, newHarness)
}

// The process ends at each call, also at calls that only read.
func TestSoakCrashes(t *testing.T) {
	property.Soak(t)
	t.Parallel()

	for name, isLinked := range map[string]bool{"linked clones": true, "full clones": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.RunCrashesAtEveryCall(t, func(t *testing.T) conformance.Harness {
				t.Helper()

				h := newHarness(t)
				h.TPMTemplate, h.Shape.Linked = h.Template, isLinked

				return h
			})
		})
	}
}

func TestProperty(t *testing.T) {
	t.Parallel()
	random.Property(t, newHarness)
}

// site is the part of the shared host that one case uses: a storage pool and a cluster of its own.
type site struct {
	t      *testing.T
	name   string
	dir    string
	config hypervisor.Config
	calls  conformance.CallHooks

	mu sync.Mutex
	// foreign are the names of the domains that the case has created for others.
	foreign []string
	// starts counts the starts of each domain, by its UUID. The events of libvirt report them. wasSeen are the machines that
	// existed when the state was read last.
	starts  map[golibvirt.UUID]int
	wasSeen map[golibvirt.UUID]bool
}

// newSite creates the pool with a template.
func newSite(t *testing.T) *site {
	t.Helper()

	sum := sha256.Sum256([]byte(t.Name()))
	name := "c" + hex.EncodeToString(sum[:6])
	s := &site{t: t, name: name, dir: filepath.Join(shared.Dir, name), starts: map[golibvirt.UUID]int{}}
	low := idMin + idsPerCase*int(cases.Add(1))
	s.config = hypervisor.Config{
		Name: name, IDMin: low, IDMax: low + idsPerCase - 1, CallsPerNode: 4, DomainType: "qemu",
		Hosts: []hypervisor.Host{{Name: "host-1", URI: shared.URI(), StoragePool: name}},
	}

	s.must(shared.DefinePool(name, s.dir))
	s.must(shared.CreateVolume(name, template, diskSize))
	s.countStarts()
	t.Cleanup(s.clean)

	return s
}

func (s *site) must(err error) {
	s.t.Helper()

	if err != nil {
		s.t.Fatal(err)
	}
}

// use calls use with a connection of an administrator.
func (s *site) use(use func(*golibvirt.Libvirt) error) {
	s.t.Helper()
	s.must(shared.Use(use))
}

// countStarts counts the starts of domains until the test ends.
func (s *site) countStarts() {
	rpc, closeConn, err := shared.Connect()
	s.must(err)

	events, err := rpc.LifecycleEvents(context.Background())
	s.must(err)

	ended := make(chan struct{})

	go func() {
		defer close(ended)

		for event := range events {
			s.mu.Lock()

			switch golibvirt.DomainEventType(event.Event) { //nolint:exhaustive // the others are no starts
			case golibvirt.DomainEventStarted:
				s.starts[event.Dom.UUID]++
			case golibvirt.DomainEventUndefined:
				delete(s.starts, event.Dom.UUID) // a later domain is another machine
			}

			s.mu.Unlock()
		}
	}()

	s.t.Cleanup(func() {
		closeConn()
		<-ended
	})
}

// clean deletes what the case has left.
func (s *site) clean() {
	s.use(func(rpc *golibvirt.Libvirt) error {
		for _, d := range s.domains(rpc) {
			deleteDomain(rpc, d.reference)
		}

		pool := s.pool(rpc)

		volumes, _, err := rpc.StoragePoolListAllVolumes(pool, 1, 0)
		for _, v := range volumes {
			err = errors.Join(err, rpc.StorageVolDelete(v, 0))
		}

		return errors.Join(err, rpc.StoragePoolDestroy(pool))
	})
}

func (s *site) pool(rpc *golibvirt.Libvirt) golibvirt.StoragePool {
	s.t.Helper()

	pool, err := rpc.StoragePoolLookupByName(s.name)
	s.must(err)

	return pool
}

func deleteDomain(rpc *golibvirt.Libvirt, d golibvirt.Domain) {
	_ = rpc.DomainDestroy(d)
	_ = rpc.DomainUndefine(d)
}

// observed is a domain of the case.
type observed struct {
	reference golibvirt.Domain
	record    libvirt.Record
	isActive  bool
}

// domains returns the domains of the case: those with a record of its cluster, and those for others.
func (s *site) domains(rpc *golibvirt.Libvirt) []observed {
	s.t.Helper()

	all, _, err := rpc.ConnectListAllDomains(1, golibvirt.ConnectListDomainsActive|golibvirt.ConnectListDomainsInactive)
	s.must(err)

	s.mu.Lock()
	foreign := slices.Clone(s.foreign)
	s.mu.Unlock()

	var out []observed

	for _, d := range all {
		o := observed{reference: d, isActive: d.ID > 0}

		element, err := rpc.DomainGetMetadata(d, int32(golibvirt.DomainMetadataElement),
			golibvirt.OptString{libvirt.MetadataURI}, golibvirt.DomainAffectCurrent)
		if err == nil {
			o.record, _, _ = libvirt.ParseMetadata(element)
		}

		if o.record.Cluster == s.name || slices.Contains(foreign, d.Name) {
			out = append(out, o)
		}
	}

	return out
}

func (s *site) inspect() conformance.State {
	var (
		state   conformance.State
		foreign []string
	)

	s.use(func(rpc *golibvirt.Libvirt) error {
		found := s.domains(rpc)
		for _, d := range found {
			if d.record.Cluster != s.name {
				foreign = append(foreign, fmt.Sprint(d.reference.Name, d.reference.UUID, d.isActive))

				continue
			}

			starts := s.countOf(d)

			state.Machines = append(state.Machines, conformance.ObservedMachine{
				ID: d.record.ID, ClaimUID: d.record.MachineClaim.UID, OperatorUID: d.record.OperatorUID,
				Running: d.isActive, Starts: starts, TPM: s.readTPM(d.reference),
			})
		}

		volumes, _, err := rpc.StoragePoolListAllVolumes(s.pool(rpc), 1, 0)
		state.Machines = append(state.Machines, s.findStopped(found, volumes)...)

		for _, v := range volumes {
			switch {
			case strings.HasSuffix(v.Name, ".iso"):
				state.Seeds = append(state.Seeds, v.Name)
			case !s.isDiskOfMachine(v.Name, state.Machines):
				foreign = append(foreign, v.Name)
			}
		}

		return err
	})

	slices.Sort(foreign)
	state.Foreign = strings.Join(foreign, "\n")

	return state
}

// transientVolume matches the name of the disk of a transient machine: the hash of the operator, the ID and the claim's UID.
var transientVolume = regexp.MustCompile(`^hf-([0-9a-f]+)-(\d+)-(.+)\.[0-9a-f]{6}\.run$`)

// findStopped returns the transient machines that are off. Of these, libvirt has only the disk.
func (s *site) findStopped(domains []observed, volumes []golibvirt.StorageVol) []conformance.ObservedMachine {
	var out []conformance.ObservedMachine

	exists := map[golibvirt.UUID]bool{}
	for _, d := range domains {
		exists[d.reference.UUID] = true
	}

	for _, v := range volumes {
		match := transientVolume.FindStringSubmatch(v.Name)
		if match == nil {
			continue
		}

		id, err := strconv.Atoi(match[2])
		s.must(err)

		uuid := libvirt.MachineUUID(match[1], id, match[3])
		if exists[uuid] {
			continue
		}

		exists[uuid] = true

		s.mu.Lock()
		out = append(out, conformance.ObservedMachine{ID: id, ClaimUID: match[3], Starts: s.starts[uuid]})
		s.mu.Unlock()
	}

	// A later machine with the UUID is another one.
	s.mu.Lock()
	defer s.mu.Unlock()

	maps.DeleteFunc(s.starts, func(uuid golibvirt.UUID, _ int) bool { return !exists[uuid] && s.wasSeen[uuid] })
	s.wasSeen = exists

	return out
}

// countOf returns the number of starts of a domain. The event of the last start may be on its way.
func (s *site) countOf(d observed) int {
	for range 200 {
		s.mu.Lock()
		starts := s.starts[d.reference.UUID]
		s.mu.Unlock()

		if starts > 0 || !d.isActive {
			return starts
		}

		time.Sleep(10 * time.Millisecond)
	}

	return 0
}

// isDiskOfMachine reports whether a volume is the disk of one of the machines. Other disks count as foreign, so a
// case fails if a disk is left.
func (s *site) isDiskOfMachine(name string, machines []conformance.ObservedMachine) bool {
	return slices.ContainsFunc(machines, func(m conformance.ObservedMachine) bool {
		return strings.Contains(name, fmt.Sprintf("-%d-%s", m.ID, m.ClaimUID))
	})
}

// wrapCall runs the hooks of the case around a call. A call of a process that has ended is not made.
func (s *site) wrapCall(ctx context.Context, call hypervisor.Call, do func() error) error {
	boundary := conformance.Boundary{Before: true, Write: call.Write, Call: call.Operation}
	s.calls.Run(boundary)

	if err := ctx.Err(); err != nil {
		return err
	}

	err := do()
	boundary.Before = false
	s.calls.Run(boundary)

	if ctx.Err() != nil {
		return ctx.Err()
	}

	return err
}

func (s *site) connect(tb conformance.TB, options hypervisor.Options) hypervisor.Connection {
	tb.Helper()

	options.WrapCall = s.wrapCall

	conn, err := libvirt.New(s.config, options)
	if err != nil {
		tb.Fatal(err)
	}

	return conn
}

// find returns the machine with the ID.
func (s *site) find(rpc *golibvirt.Libvirt, id int) (golibvirt.Domain, bool) {
	for _, d := range s.domains(rpc) {
		if d.record.ID == id && d.record.Cluster == s.name {
			return d.reference, true
		}
	}

	return golibvirt.Domain{}, false
}

func (s *site) powerOff(id int) {
	s.use(func(rpc *golibvirt.Libvirt) error {
		if d, ok := s.find(rpc, id); ok {
			_ = rpc.DomainDestroy(d) // it may be off already
		}

		return nil
	})
}

// shutDown lets the machine power off as its guest does at the end of its job.
func (s *site) shutDown(id int) {
	s.use(func(rpc *golibvirt.Libvirt) error {
		d, ok := s.find(rpc, id)
		if !ok {
			return fmt.Errorf("machine %d does not run", id)
		}

		_, _ = rpc.QEMUDomainMonitorCommand(d, `{"execute":"quit"}`, 0) // QEMU may end before it responds

		return nil
	})
}

func (s *site) deleteExternally(tb conformance.TB, id int) {
	tb.Helper()
	s.use(func(rpc *golibvirt.Libvirt) error {
		d, ok := s.find(rpc, id)
		if !ok {
			return nil
		}

		deleteDomain(rpc, d)

		// The disk goes with the machine, and its ISO stays.
		volumes, _, err := rpc.StoragePoolListAllVolumes(s.pool(rpc), 1, 0)
		for _, v := range volumes {
			if strings.Contains(v.Name, fmt.Sprintf("-%d-", id)) && !strings.HasSuffix(v.Name, ".iso") {
				err = rpc.StorageVolDelete(v, 0)
			}
		}

		return err
	})
}

// occupyID defines a domain of another owner with the name that the machine of claim-1 would have.
func (s *site) occupyID(tb conformance.TB, id int) {
	tb.Helper()

	name := fmt.Sprintf("claim-1-%d", id)

	s.mu.Lock()
	s.foreign = append(s.foreign, name)
	s.mu.Unlock()

	s.use(func(rpc *golibvirt.Libvirt) error {
		_, err := rpc.DomainDefineXMLFlags(fmt.Sprintf(
			"<domain type='qemu'><name>%s</name><memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>", name), 0)

		return err
	})
}

func newHarness(t *testing.T) conformance.Harness {
	t.Helper()

	s := newSite(t)

	return conformance.Harness{
		Connect:  s.connect,
		Template: hypervisor.TemplateRef{Name: template, Kind: hypervisor.TemplateStorageVolume},
		Shape:    hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true},
		IDMin:    s.config.IDMin, NamesHoldOwner: true, RealTime: true,
		ConsoleText: "SeaBIOS", // of the firmware
		TPMsHidden:  true,      // TestTPM compares the TPMs of machines
		Inspect:     s.inspect, OnCall: s.calls.Add,
		PowerOff: s.powerOff, OccupyID: s.occupyID, DeleteExternally: s.deleteExternally,
	}
}

func newSeed(context.Context) (hypervisor.Seed, error) {
	return hypervisor.Seed{UserData: []byte("#cloud-config\n{}\n"), MetaData: []byte("instance-id: a\n")}, nil
}
