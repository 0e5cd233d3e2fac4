// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// A copy of etcd that is started in a second place is the same operator, which does not know
// what the first has made since. It holds it, and tells of it.
func TestCopyOfEtcdElsewhere(t *testing.T) {
	t.Parallel()

	const machines = 5

	one := fleet.New(t, env, fleet.Options{})
	one.Populate(machines)
	one.Start()
	one.EventuallyReady(one.NewPool(machines))

	command, release := held(t)
	one.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Command: command, Count: machines})
	one.GitHub.Eventually("the jobs run", func(s control.State) bool {
		for _, job := range s.Jobs {
			if job.Status != "in_progress" {
				return false
			}
		}

		return len(s.Jobs) == machines
	})

	copied := fleet.New(t, env, fleet.Options{PVE: one.PVE, OperatorUID: one.OperatorUID})
	copied.Cluster = one.Cluster // one object, as the copies would be two of the same name
	copied.Runners.OrphanInterval = 200 * time.Millisecond
	copied.Runners.OrphanAge = 0
	copied.Start()
	copied.EventuallyEvent("OrphansHeld")

	if n := len(one.PVE.Snapshot().Made()); n != machines {
		t.Fatalf("%d machines are left, want all %d", n, machines)
	}

	release()
	one.EventuallyDone(machines)
	copied.Stop()
	one.EventuallyClean()
}

// A machine that ran its job before the answer to its start was heard is not made again when it
// is gone: its credential was good for once, and nobody needs a second one.
func TestMachineThatRanIsNotMadeAgain(t *testing.T) {
	t.Parallel()

	f := fleet.New(t, env, fleet.Options{})
	f.Populate(1)

	heard := make(chan struct{})
	forget := f.PVE.OnCall(func(call pve.Call) {
		if call.Phase == pve.After && strings.HasSuffix(call.Path, "/status/start") {
			<-heard
		}
	})
	t.Cleanup(forget)

	f.Start()
	f.EventuallyReady(f.NewPool(1))

	command, _ := held(t)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Command: command})
	f.GitHub.Eventually("the job runs", func(s control.State) bool { return s.Jobs[0].Status == "in_progress" })
	f.Eventually("the operator having heard of it", func() (bool, string) {
		var jobs v1alpha1.RunnerJobList
		if err := f.Client.List(t.Context(), &jobs, client.InNamespace(f.Namespace)); err != nil {
			return false, err.Error()
		}

		return len(jobs.Items) == 1 && jobs.Items[0].Spec.State == v1alpha1.JobRunning, "it has not"
	})

	f.Stop()
	close(heard) // nobody reads it any more

	for _, vm := range f.PVE.Snapshot().Made() {
		f.PVE.Vanish(vm.VMID)
	}

	f.Start()
	f.EventuallyClean()

	if n := f.VMsMade(); n != 1 {
		t.Errorf("%d machines were made, want 1", n)
	}
}

// relay is an address behind which servers come and go.
type relay struct {
	net.Listener

	mu     sync.Mutex
	to     string
	opened []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	r := &relay{Listener: listener, to: to}

	t.Cleanup(func() {
		_ = listener.Close()
		r.lead("")
	})

	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}

			go r.pass(from)
		}
	}()

	return r
}

func (r *relay) pass(from net.Conn) {
	r.mu.Lock()
	to, err := net.Dial("tcp", r.to)

	if err == nil {
		r.opened = append(r.opened, to)
	}

	r.opened = append(r.opened, from)
	r.mu.Unlock()

	if err != nil {
		_ = from.Close()

		return
	}

	go func() { _, _ = io.Copy(to, from) }()

	_, _ = io.Copy(from, to)
	_ = from.Close()
}

// lead leads to another server; what was open is cut.
func (r *relay) lead(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, open := range r.opened {
		_ = open.Close()
	}

	r.to, r.opened = to, nil
}

func address(s *pve.Server) string { return strings.TrimPrefix(s.URL(), "https://") }

// A Proxmox VE that was installed anew, at the address of the old one, is not taken for it: the
// operator waits, and says which fingerprint to set. Then the machines of the old one are gone,
// and jobs run on the new one.
func TestProxmoxRebuilt(t *testing.T) {
	t.Parallel()

	model := fleet.Model()
	model.Guest.Script = fleet.Guest(t)
	old := pvetest.New(t, model)

	f := fleet.New(t, env, fleet.Options{})
	front := newRelay(t, address(old))

	cluster := f.NewCluster()
	cluster.Spec.Endpoint = fmt.Sprintf("https://%s/api2/json", front.Addr())
	cluster.Spec.TLS.Fingerprint = old.Fingerprint()
	f.CreateCluster(cluster)
	f.Create(f.NewTemplate())
	f.Create(f.NewPool(2))
	f.Start()
	f.EventuallyReady(f.NewPool(2))

	command, _ := held(t)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Command: command})
	f.GitHub.Eventually("the job runs", func(s control.State) bool { return s.Jobs[0].Status == "in_progress" })

	for _, vm := range old.Snapshot().Made() {
		old.Vanish(vm.VMID)
	}

	front.lead(address(f.PVE))

	message := f.EventuallyCondition(cluster, step.Ready, metav1.ConditionFalse, "")
	if want := "set tls.fingerprint to " + f.PVE.Fingerprint(); !strings.Contains(message, want) {
		t.Errorf("the cluster says %q, and not %q", message, want)
	}

	var claims v1alpha1.MachineClaimList
	if err := f.Client.List(t.Context(), &claims, client.InNamespace(f.Namespace)); err != nil || len(claims.Items) == 0 {
		t.Errorf("the claim went while nobody could know of its machine: %d are there, %v", len(claims.Items), err)
	}

	before := cluster.DeepCopy()
	cluster.Spec.TLS.Fingerprint = f.PVE.Fingerprint()

	if err := f.Client.Patch(t.Context(), cluster, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}

	f.EventuallyReady(cluster)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}})
	f.GitHub.Eventually("the next job has ended well", func(s control.State) bool { return s.Jobs[1].Conclusion == "success" })
	f.EventuallyClean()
}

// A pool whose template is moved to another cluster makes its next machines there, and those
// that are there run to their end.
func TestPoolMovedToAnotherCluster(t *testing.T) {
	t.Parallel()

	f := fleet.New(t, env, fleet.Options{})
	f.Populate(2)

	model := fleet.Model()
	model.Guest.Script = fleet.Guest(t)
	other := f.NewSite("other", model)

	f.Start()
	f.EventuallyReady(f.NewPool(2))
	f.EventuallyReady(other.Template)

	command, release := held(t)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Command: command})
	f.GitHub.Eventually("the job runs", func(s control.State) bool { return s.Jobs[0].Status == "in_progress" })

	template := f.NewTemplate()
	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(template), template); err != nil {
		t.Fatal(err)
	}

	before := template.DeepCopy()
	template.Spec.HypervisorClusterRef.Name = other.Cluster.Name

	if err := f.Client.Patch(t.Context(), template, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}

	f.Eventually("the template being ready on the other cluster", func() (bool, string) {
		if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(template), template); err != nil {
			return false, err.Error()
		}

		return step.IsReady(template) && template.Status.ObservedGeneration == template.Generation, step.WhyNot(template)
	})

	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Command: command})
	f.GitHub.Eventually("the next job runs", func(s control.State) bool { return s.Jobs[1].Status == "in_progress" })

	for name, server := range map[string]*pve.Server{"old": f.PVE, "new": other.PVE} {
		if n := len(server.Snapshot().Made()); n != 1 {
			t.Errorf("the %s cluster has %d machines, want 1", name, n)
		}
	}

	release()
	f.EventuallyDone(2)
	f.EventuallyClean()
}
