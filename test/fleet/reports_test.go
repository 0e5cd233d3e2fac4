// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// The tests of this file are troubles that users of similar projects have reported.

// TestMatrix runs the jobs of a matrix. TestSoakMatrix runs as many as GitHub allows.
func TestMatrix(t *testing.T) {
	t.Parallel()
	testMatrix(t, 48, 8)
}

func TestSoakMatrix(t *testing.T) {
	property.Soak(t)
	t.Parallel()
	testMatrix(t, 256, 20)
}

// testMatrix checks that all jobs of one matrix run once, in a pool of maxReplicas machines, that no more machines exist at
// the same time, and that the jobs that wait say what they wait for.
func testMatrix(t *testing.T, jobs int, maxReplicas int32) {
	t.Helper()

	f := newFastFleet(t, fleet.Options{})
	f.Populate(maxReplicas)
	f.Start()
	f.EventuallyReady(f.NewPool(maxReplicas))

	t.Cleanup(f.PVE.OnCall(func(call pve.Call) {
		if n := len(f.PVE.Snapshot().CreatedVMs()); call.Phase == pve.PhaseAfter && n > int(maxReplicas) {
			t.Errorf("%d machines exist", n)
		}
	}))

	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Name: "matrix", Count: jobs, Duration: time.Millisecond})
	f.Eventually("all jobs having a pool or waiting for a machine", func() (bool, string) {
		known, waiting := countWaitingJobs(f)

		return known == jobs && waiting > 0, fmt.Sprintf("%d jobs are known, %d wait because the pool is at its maximum", known, waiting)
	})
	f.EventuallyJobsDone(jobs)
	f.EventuallyClean()

	if n := f.CountClones(); n != jobs {
		t.Errorf("%d machines were created for %d jobs", n, jobs)
	}

	runners := map[string]bool{}
	for _, job := range f.GitHub.State().Jobs {
		runners[job.RunnerName] = true
	}

	if len(runners) != jobs {
		t.Errorf("%d runners ran %d jobs", len(runners), jobs)
	}
}

// countWaitingJobs returns the number of the fleet's jobs, and of those that wait because the pool is at its maximum.
func countWaitingJobs(f *fleet.Fleet) (known, waiting int) {
	f.T.Helper()

	var list v1alpha1.RunnerJobList
	if err := f.Client.List(f.T.Context(), &list, client.InNamespace(f.Namespace)); err != nil {
		f.T.Fatal(err)
	}

	for i := range list.Items {
		ready := meta.FindStatusCondition(list.Items[i].Status.Conditions, step.Ready)
		if ready != nil && ready.Reason == "AtMaximum" {
			waiting++
		}
	}

	return len(list.Items), waiting
}

// TestIPv6Only checks that jobs run on a network without IPv4: the hypervisor, the operator's URL, the pool of
// addresses and the address that the guest agent reports are IPv6 addresses.
func TestIPv6Only(t *testing.T) {
	t.Parallel()

	var found guestRecorder

	f := newAddressFleet(t, fleet.Options{})
	f.Front.URL = listenIPv6(t, f.Front)
	f.GitHub.SetWebhook(control.WebhookTarget{URL: f.Front.URL + "/webhooks/github", Secret: "hook"})
	f.SetSecret("webhook", "secret", "hook")

	model := fleet.Model()
	model.Guest = pve.Guest{IPv6Only: true, Script: func(vm pve.GuestVM) { found.wrapGuest(t)(vm, f.Guest()) }}
	f.PVE = pvetest.Listen(t, model, pve.ListenOptions{Address: "[::1]:0"}, pve.WithClock(f.Clock))

	template := newPooledTemplate(f, v1alpha1.AddressPool{
		Addresses: []v1alpha1.AddressRange{"fd00:9::10-fd00:9::13"}, PrefixLengthV6: 64,
		Gateway: []v1alpha1.IPAddress{"fd00:9::1"}, Nameservers: []v1alpha1.IPAddress{"fd00:9::53"},
	})
	template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback
	createAndStart(f, template, f.NewPool(2))
	f.EventuallyReady(f.NewPool(2))

	release := holdJobs(t, f, 1)

	f.Eventually("the status having the IPv6 addresses", func() (bool, string) {
		var text strings.Builder

		for _, claim := range listClaims(f) {
			info := claim.Status.NetworkInfo
			if info != nil && strings.HasPrefix(info.IPAddress, "2001:db8::") && slices.Equal(info.Addresses, []string{"fd00:9::10/64"}) {
				return true, ""
			}

			fmt.Fprintf(&text, "%s %+v\n", claim.Name, info)
		}

		return false, text.String()
	})
	release()
	queueJobs(f, 2)
	f.EventuallyJobsDone(3)
	f.EventuallyClean()

	found.mu.Lock()
	defer found.mu.Unlock()

	for _, cfg := range found.configs {
		if !strings.HasPrefix(cfg.Callback.URL, "http://[::1]:") || !strings.HasPrefix(cfg.Report.URL, "http://[::1]:") {
			t.Errorf("the machine calls %s and %s", cfg.Callback.URL, cfg.Report.URL)
		}
	}

	if all := string(slices.Concat(found.files...)); !strings.Contains(all, "fd00:9::1") || !strings.Contains(all, "fd00:9::53") || strings.Contains(all, "0.0.0.0") {
		t.Errorf("the cloud-init ISOs have no IPv6 addresses, gateway or name server, or have a route of IPv4:\n%s", all)
	}
}

// listenIPv6 serves a handler on the IPv6 loopback address, and returns its URL.
func listenIPv6(t *testing.T, handler http.Handler) string {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp6", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}

	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}} // #nosec G112 -- only this test calls it
	server.Start()
	t.Cleanup(server.Close)

	return server.URL
}

// TestHypervisorUpgrade upgrades Proxmox VE from 8 to 9 while a job runs and machines are created: tasks are killed, the API
// is unavailable for a time, and the version and the names of the privileges change. All jobs run once, and the cluster
// has the new version and says which privilege is missing now.
func TestHypervisorUpgrade(t *testing.T) {
	t.Parallel()

	const jobs = 4

	model := fleet.Model()
	model.Version = "8.4.1"
	f := newFastFleet(t, fleet.Options{Model: model})
	f.Populate(jobs)
	f.Start()
	f.EventuallyReady(f.NewPool(jobs))

	release := holdJobs(t, f, 1)
	before := listVMIDs(f)

	// The daemons restart: a task is killed, of another one the result is lost, and then no call gets an answer.
	f.PVE.AddFault(pve.Fault{Kind: pve.FaultTaskKilled, Method: http.MethodPost, Path: "/nodes/*/qemu/*/clone", Count: 1})
	f.PVE.AddFault(pve.Fault{Kind: pve.FaultTaskLost, Method: http.MethodPost, Path: "/nodes/*/qemu/*/status/start", Count: 1})
	queueJobs(f, jobs-1)
	f.Eventually("the next machines being created", func() (bool, string) { return len(listVMIDs(f)) > len(before), f.Describe() })

	removeFaults := []func(){
		f.PVE.AddFault(pve.Fault{Kind: pve.FaultProxyTimeout, Node: "pve1", Probability: 0.5}),
		f.PVE.AddFault(pve.Fault{Kind: pve.FaultError, Status: http.StatusBadGateway, Reason: "Bad Gateway"}),
	}
	cluster := f.NewCluster()
	f.EventuallyCondition(cluster, step.Ready, metav1.ConditionFalse, "")
	f.PVE.Upgrade("9.0.3")

	for _, remove := range slices.Backward(removeFaults) {
		<-f.Clock.After(3 * time.Second)
		remove()
	}

	f.Eventually("the cluster having the new version", func() (bool, string) {
		err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster)

		return err == nil && cluster.Status.Version == "9.0.3", cluster.Status.Version
	})

	for _, id := range before {
		if !slices.Contains(listVMIDs(f), id) {
			t.Errorf("VM %d was deleted while its job ran", id)
		}
	}

	release()
	f.EventuallyJobsDone(jobs)
	checkContains(t, f.EventuallyCondition(cluster, "Connected", metav1.ConditionTrue, ""), "VM.GuestAgent.Audit")
	f.PVE.SetPrivilege("HyperFleetVM", "VM.GuestAgent.Audit", true)
	f.EventuallyClean()

	for _, job := range f.GitHub.State().Jobs {
		if job.Conclusion != "success" {
			t.Errorf("job %d ended with %s", job.ID, job.Conclusion)
		}
	}
}

// TestLongestNames uses the longest names that the API accepts, with dots where they are allowed: of the namespace, the
// cluster, the template, the pool and a claim. Jobs run, the machines have these names, and nothing is left.
func TestLongestNames(t *testing.T) {
	t.Parallel()

	dotted := func(length int) string { return strings.Repeat("a.", length/2) + "a" }

	f := newFastFleet(t, fleet.Options{Namespace: "n-" + strings.Repeat("n", 61)})
	cluster, template, pool := f.NewCluster(), f.NewTemplate(), f.NewPool(2)
	cluster.Name, cluster.Spec.DNS = dotted(253), &v1alpha1.HypervisorDNS{Domain: dotted(189)}
	template.Name = dotted(63)
	template.Spec.HypervisorClusterRef.Name = cluster.Name
	template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback
	pool.Name, pool.Spec.TemplateRef.Name = strings.Repeat("p", 52), template.Name
	claim := f.NewClaim(strings.Repeat("c", 63))
	claim.Spec.TemplateRef.Name = template.Name

	f.CreateCluster(cluster)
	f.Create(template)
	f.Create(pool)
	f.Start()
	f.EventuallyReady(pool)
	f.Create(claim)

	release := holdJobs(t, f, 1)

	f.Eventually("both machines having the names of their claims", func() (bool, string) {
		var names []string
		for _, vm := range f.PVE.Snapshot().CreatedVMs() {
			names = append(names, vm.Name)
		}

		return slices.Contains(names, claim.Name), strings.Join(names, " ")
	})
	release()
	queueJobs(f, 3)
	f.EventuallyJobsDone(4)
	deleteObject(f, pool)
	f.EventuallyClean()
}
