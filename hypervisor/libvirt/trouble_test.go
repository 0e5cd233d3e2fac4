// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	testlibvirt "github.com/hyperfleet/hyperfleet/test/libvirt"
)

const (
	// troubleTimeout limits each wait of a test with hosts in trouble.
	troubleTimeout = time.Minute
	// bound is how long a call may take at most while a host does not respond: two timeouts and some more.
	bound = 25 * time.Second
)

// fleet is a cluster of several hosts of its own, over TLS.
type fleet struct {
	*testing.T

	hosts  map[string]*testlibvirt.Host
	config hypervisor.Config
	next   int
}

// newFleet starts hosts. A host whose pool has a size has a file system of its own for it.
func newFleet(t *testing.T, poolSizes map[string]int64) *fleet {
	t.Helper()

	server, operator := newCertificates(t)
	f := &fleet{T: t, hosts: map[string]*testlibvirt.Host{}}
	f.config = hypervisor.Config{Name: "fleet", DomainType: "qemu", TLS: operator}

	for name, size := range poolSizes {
		h := testlibvirt.Start(t, testlibvirt.Options{
			TLS: &server, PoolSize: size,
		})
		if err := h.CreateVolume(testlibvirt.PoolName, template, diskSize); err != nil {
			t.Fatal(err)
		}

		f.hosts[name] = h
		f.config.Hosts = append(f.config.Hosts, hypervisor.Host{
			Name: name, URI: h.TLSURI(), StoragePool: testlibvirt.PoolName, MaxStoragePercent: 90,
		})
	}

	return f
}

// newCertificates returns the certificates of hosts and the operator's TLS settings for them, of a new CA.
func newCertificates(t *testing.T) (testlibvirt.TLS, *tls.Config) {
	t.Helper()

	ca := brokers.NewCA(t)
	server, client := ca.IssueServer(t), ca.IssueClient(t, "operator")

	pair, err := tls.LoadX509KeyPair(client.File, client.KeyFile)
	if err != nil {
		t.Fatal(err)
	}

	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)

	return testlibvirt.TLS{CAFile: ca.File, CertFile: server.File, KeyFile: server.KeyFile},
		&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

func (f *fleet) connect() hypervisor.Connection {
	f.Helper()

	conn, err := libvirt.New(f.config, hypervisor.Options{OperatorUID: "operator"})
	if err != nil {
		f.Fatal(err)
	}

	f.Cleanup(conn.Close)

	return conn
}

func (f *fleet) must(err error) {
	f.Helper()

	if err != nil {
		f.Fatal(err)
	}
}

func (f *fleet) newSpec() hypervisor.MachineSpec {
	f.next++

	return hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: fmt.Sprintf("claim-%d", f.next), UID: fmt.Sprintf("uid-%d", f.next)},
		Template: hypervisor.TemplateRef{Name: template}, Shape: hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true},
	}
}

// create creates a machine on a host.
func (f *fleet) create(p hypervisor.Provider, node string) hypervisor.MachineRef {
	f.Helper()

	return f.createFrom(p, f.newSpec(), node)
}

func (f *fleet) createFrom(p hypervisor.Provider, spec hypervisor.MachineSpec, node string) hypervisor.MachineRef {
	f.Helper()

	reserved, err := p.Reserve(f.Context(), spec)
	f.must(err)

	spec.ID, spec.Node = reserved.ID, node
	m, err := conformance.Create(f.Context(), p, &spec, newSeed)
	f.must(err)

	if m.Node != node || m.State != hypervisor.StateRunning {
		f.Fatalf("want a machine that runs on %s, got %+v", node, m)
	}

	return hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}
}

func (f *fleet) eventually(description string, ok func() bool) {
	f.Helper()

	for deadline := time.Now().Add(troubleTimeout); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("timed out: %s", description)
		}
	}
}

// offline returns the hosts that the provider reports as offline, with the reasons.
func (f *fleet) offline(p hypervisor.Provider) map[string]string {
	f.Helper()

	start := time.Now()
	capacity, err := p.Capacity(f.Context())
	f.must(err)

	if took := time.Since(start); took > bound {
		f.Errorf("Capacity took %s", took)
	}

	out := map[string]string{}

	for _, n := range capacity.Nodes {
		if !n.Online {
			out[n.Name] = n.OfflineReason
		}
	}

	return out
}

func (f *fleet) wantKind(what string, err error, want hypervisor.Kind) {
	f.Helper()

	if hypervisor.KindOf(err) != want {
		f.Errorf("%s: want an error of kind %q, got %q: %v", what, want, hypervisor.KindOf(err), err)
	}
}

// TestHostsInTrouble has one host that hangs, one that is killed, and one with a full pool. The fourth continues to work,
// and the states of the others are correct. When they respond again, no machine exists twice and nothing is left.
func TestHostsInTrouble(t *testing.T) {
	t.Parallel()

	f := newFleet(t, map[string]int64{"good": 0, "hung": 0, "killed": 0, "full": 2 * mebibyte})
	p := f.connect()

	info, err := p.Check(t.Context())
	f.must(err)

	if len(info.Nodes) != 4 || len(info.Warnings) != 0 {
		t.Fatalf("want four hosts without warnings, got %+v", info)
	}

	onGood, onHung, onKilled := f.create(p, "good"), f.create(p, "hung"), f.create(p, "killed")

	placed := f.newSpec()
	reserved, err := p.Reserve(t.Context(), placed)
	f.must(err)

	placed.ID, placed.Node = reserved.ID, "hung"

	f.fillPool("full")
	f.must(f.hosts["hung"].Suspend())
	f.must(f.hosts["killed"].Kill())

	f.eventually("both hosts are reported as offline", func() bool { return len(f.offline(p)) == 2 })

	for name, reason := range f.offline(p) {
		if reason == "" || name == "good" || name == "full" {
			t.Errorf("host %s is offline because of %q", name, reason)
		}
	}

	for range 4 {
		start := time.Now()
		reserved, err := p.Reserve(t.Context(), f.newSpec())
		f.must(err)

		if took := time.Since(start); reserved.Node != "good" || took > time.Second {
			t.Errorf("a machine was placed on %s in %s, want good at once", reserved.Node, took)
		}
	}

	_, err = p.Start(t.Context(), placed, newSeed)
	f.wantKind("start of a machine that does not exist yet", err, hypervisor.IDTaken)

	f.checkMachines(p, onGood, onHung, onKilled)

	// Another process does not know where the machines are.
	other := f.connect()
	_, err = other.Get(t.Context(), onKilled)
	f.wantKind("get from another process", err, hypervisor.Unavailable)
	f.wantKind("delete from another process", other.Delete(t.Context(), onHung), hypervisor.Unavailable)

	f.must(f.hosts["hung"].Resume())
	f.must(f.hosts["killed"].Restart(t.Context()))
	f.eventually("all hosts are online", func() bool { return len(f.offline(p)) == 0 })

	for ref, want := range map[hypervisor.MachineRef]hypervisor.State{
		onGood: hypervisor.StateRunning, onHung: hypervisor.StateRunning, onKilled: hypervisor.StateStopped,
	} {
		m, err := p.Get(t.Context(), ref)
		if err != nil || m.State != want {
			t.Errorf("want machine %d to be %s, got %+v (%v)", ref.ID, want, m, err)
		}

		f.must(conformance.Delete(t.Context(), p, ref))
	}

	f.checkNothingLeft(p)
}

// fillPool fills the pool of a host, and checks that a machine for it waits and leaves nothing.
func (f *fleet) fillPool(name string) {
	f.Helper()

	f.must(f.hosts[name].FillPool())

	p := f.connect()
	spec := f.newSpec()
	spec.ID, spec.Node = 100099, name

	_, err := p.Start(f.Context(), spec, newSeed)
	f.wantKind("start on a full pool", err, hypervisor.NoCapacity)
	f.must(conformance.Delete(f.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))
}

// checkMachines checks that machines on hosts that do not respond are not treated as gone.
func (f *fleet) checkMachines(p hypervisor.Provider, onGood, onHung, onKilled hypervisor.MachineRef) {
	f.Helper()

	m, err := p.Get(f.Context(), onGood)
	if err != nil || m.State != hypervisor.StateRunning {
		f.Errorf("want a machine that runs, got %+v (%v)", m, err)
	}

	for _, ref := range []hypervisor.MachineRef{onHung, onKilled} {
		_, err := p.Get(f.Context(), ref)
		f.wantKind("get", err, hypervisor.Unavailable)
		f.wantKind("delete", p.Delete(f.Context(), ref), hypervisor.Unavailable)
	}

	all, err := p.List(f.Context())
	if err != nil || len(all) != 3 {
		f.Errorf("want the three machines of the last lists, got %+v (%v)", all, err)
	}
}

func (f *fleet) checkNothingLeft(p hypervisor.Provider) {
	f.Helper()

	all, err := p.List(f.Context())
	if err != nil || len(all) != 0 {
		f.Errorf("want nothing left, got %+v (%v)", all, err)
	}
}

// A host whose client certificate or server certificate is of another CA is a problem that a person must fix.
func TestUntrustedCertificates(t *testing.T) {
	t.Parallel()

	f := newFleet(t, map[string]int64{"host": 0})
	trusted := f.config.TLS

	f.config.TLS = trusted.Clone()
	f.config.TLS.RootCAs = x509.NewCertPool()
	_, err := f.connect().Check(t.Context())
	f.wantKind("another CA of the server", err, hypervisor.Rejected)

	other := brokers.NewCA(t).IssueClient(t, "operator")
	pair, err := tls.LoadX509KeyPair(other.File, other.KeyFile)
	f.must(err)

	f.config.TLS = trusted.Clone()
	f.config.TLS.Certificates = []tls.Certificate{pair}
	_, err = f.connect().Check(t.Context())
	f.wantKind("another CA of the client", err, hypervisor.Rejected)
}

// A host comes back from a restart with certificates of another CA. The operator's new connection, with the new CA and a
// new client certificate, knows the machine from before and deletes it. A connection with the former ones is refused.
func TestCertificatesAreReplaced(t *testing.T) {
	t.Parallel()

	f := newFleet(t, map[string]int64{"host": 0})
	before := f.connect()
	known := f.create(before, "host")

	files, operator := newCertificates(t)
	f.must(f.hosts["host"].EnableTLS(t.Context(), files))
	f.config.Hosts[0].URI = f.hosts["host"].TLSURI()

	_, err := f.connect().Check(t.Context())
	f.wantKind("check with the former CA", err, hypervisor.Rejected)

	f.config.TLS = operator
	after := f.connect()

	if all, err := after.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("the connection with the new CA lists %+v (%v), want the machine from before", all, err)
	}

	next := f.create(after, "host")
	for _, ref := range []hypervisor.MachineRef{known, next} {
		f.must(conformance.Delete(t.Context(), after, ref))
	}

	f.checkNothingLeft(after)
}
