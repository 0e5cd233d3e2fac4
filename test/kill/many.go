// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

// Restart is what a start of the operator took.
type Restart struct {
	// All is the time until each claim has had its pass.
	All time.Duration
	// RSS is the operator's peak resident memory in bytes.
	RSS int64
	// Written are the claims that were written until some seconds after that, and their template
	// where it was not ready meanwhile.
	Written []string
}

// settled is when all is written that an operator has held in memory, to write it with more.
const settled = 7 * time.Second

// crowd are claims whose machines wait for a job.
type crowd struct {
	*fleet.Fleet

	operators *operators
	// first lived by itself, the others are its copies.
	first v1alpha1.MachineClaim
	vm    pve.VMState
}

// StartWith starts an operator that has its settings by default where so many machines wait for
// a job. One of them was made; the others are its copies under names of their own, at the API
// server and at the hypervisor.
func StartWith(tb testing.TB, env *kube.Env, binary string, machines int) Restart {
	tb.Helper()

	f := fleet.New(tb, env, fleet.Options{})
	urls := f.Runners.PlatformURLs
	f.Runners = config.Default().Runners
	f.Runners.PlatformURLs = urls

	c := &crowd{Fleet: f, operators: newOperators(tb, f, binary, alone(), f.Env.Config, config.AreaRunners)}
	f.Front.Serve(c.operators.front)
	c.live()
	f.Front.Serve(http.NotFoundHandler()) // the first machine goes on to report, which would be written
	c.multiply(machines - 1)

	before, begun := c.versions(), time.Now()
	c.start()

	for c.metric("controller_runtime_reconcile_total") < float64(machines) || c.metric("workqueue_depth") > 0 {
		if time.Since(begun) > 10*patience {
			tb.Fatalf("not all claims were looked at\n%.20000s", c.operators.Logs())
		}

		time.Sleep(f.Poll)
	}

	out := Restart{All: time.Since(begun)}

	time.Sleep(settled)

	out.RSS = c.end()
	tb.Logf("%d machines: all looked at after %s, %d MiB at the peak", machines, out.All.Round(time.Millisecond), out.RSS>>20)
	out.Written = c.written(before)

	return out
}

func (c *crowd) start() {
	c.T.Helper()

	if err := c.operators.start(c.T.Context()); err != nil {
		c.T.Fatalf("%v\n%.20000s", err, c.operators.Logs())
	}
}

// end ends the operator and gives its peak resident memory in bytes.
func (c *crowd) end() int64 {
	c.operators.mu.Lock()
	process := c.operators.process
	c.operators.mu.Unlock()
	c.operators.kill()

	return process.MaxRSS()
}

// live has one machine wait for a job.
func (c *crowd) live() {
	c.T.Helper()

	c.CreateCluster(c.NewCluster())
	c.Create(c.NewTemplate())
	c.start()

	claim := c.NewClaim("machine")
	c.Create(claim)
	c.EventuallyReady(claim)
	c.end()

	c.first = *claim

	for _, vm := range c.PVE.Snapshot().VMs {
		if strings.Contains(vm.Config["description"], string(claim.UID)) {
			c.vm = vm
		}
	}
}

// multiply adds copies of the first machine.
func (c *crowd) multiply(copies int) {
	c.T.Helper()

	const writers = 8

	vms := make([]pve.VM, copies+1)
	vms[copies] = c.copyOf(c.first.Name, string(c.first.UID), c.vm.VMID)

	var all errgroup.Group

	all.SetLimit(writers)

	for i := range copies {
		all.Go(func() error {
			vmid := c.vm.VMID + 1 + i

			claim := c.first.DeepCopy()
			claim.ObjectMeta = metav1.ObjectMeta{
				Namespace: c.Namespace, Name: c.first.Name + "-" + strconv.Itoa(i), Finalizers: c.first.Finalizers,
				Labels: c.first.Labels, Annotations: c.first.Annotations,
			}

			if err := c.Client.Create(c.T.Context(), claim); err != nil {
				return err
			}

			vms[i] = c.copyOf(claim.Name, string(claim.UID), vmid)

			status, err := json.Marshal(c.first.Status)
			if err != nil {
				return err
			}

			status = []byte(c.own(claim.Name, string(claim.UID), vmid).Replace(string(status)))
			claim.Status = v1alpha1.MachineClaimStatus{}

			if err := json.Unmarshal(status, &claim.Status); err != nil {
				return err
			}

			return c.Client.Status().Update(c.T.Context(), claim)
		})
	}

	if err := all.Wait(); err != nil {
		c.T.Fatal(err)
	}

	model := fleet.Model()
	model.VMs = vms
	c.PVE = pvetest.New(c.T, model)

	cluster := c.NewCluster()
	if err := c.Client.Get(c.T.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil {
		c.T.Fatal(err)
	}

	cluster.Spec = c.NewCluster().Spec
	if err := c.Client.Update(c.T.Context(), cluster); err != nil {
		c.T.Fatal(err)
	}

	// It is the one that the operator has seen.
	cluster.Status.ObservedGeneration = cluster.Generation
	for i := range cluster.Status.Conditions {
		cluster.Status.Conditions[i].ObservedGeneration = cluster.Generation
	}

	if err := c.Client.Status().Update(c.T.Context(), cluster); err != nil {
		c.T.Fatal(err)
	}
}

// own puts names of a machine in the place of the first one's.
func (c *crowd) own(name, uid string, vmid int) *strings.Replacer {
	const short = 8 // of a uid, in runners' names

	first := string(c.first.UID)

	return strings.NewReplacer(
		first, uid, c.first.Name+"-"+first[:short], name+"-"+uid[:short], `"`+c.first.Name+`"`, `"`+name+`"`,
		strconv.Itoa(c.vm.VMID), strconv.Itoa(vmid),
	)
}

// copyOf is the first machine under other names.
func (c *crowd) copyOf(name, uid string, vmid int) pve.VM {
	own := c.own(name, uid, vmid)

	return pve.VM{
		VMID: vmid, Name: own.Replace(c.vm.Name), Node: c.vm.Node, Running: true, Storage: "local-lvm",
		Config: map[string]string{
			"description": own.Replace(c.vm.Config["description"]), "tags": own.Replace(c.vm.Config["tags"]),
		},
	}
}

// metric is one of the operator's, of its controller of claims; -1 as long as it tells none.
func (c *crowd) metric(name string) float64 {
	value, err := scrape.Sum(c.T.Context(), "http://"+c.operators.metrics+"/metrics", name, `"machineclaim"`)
	if err != nil {
		return -1
	}

	return value
}

// versions are those of the claims by name, and when their template became ready: what it says of
// the hypervisor may change, for it is another one.
func (c *crowd) versions() map[string]string {
	c.T.Helper()

	var (
		claims    v1alpha1.MachineClaimList
		templates v1alpha1.HypervisorMachineTemplateList
	)

	for _, list := range []client.ObjectList{&claims, &templates} {
		if err := c.Client.List(c.T.Context(), list, client.InNamespace(c.Namespace)); err != nil {
			c.T.Fatal(err)
		}
	}

	out := map[string]string{}

	for i := range claims.Items {
		out[claims.Items[i].Name] = claims.Items[i].ResourceVersion
	}

	for i := range templates.Items {
		if ready := meta.FindStatusCondition(templates.Items[i].Status.Conditions, step.Ready); ready != nil {
			out["template "+templates.Items[i].Name] = string(ready.Status) + ready.LastTransitionTime.String()
		}
	}

	return out
}

// written gives what was written since, and fails the test where a machine was ended.
func (c *crowd) written(before map[string]string) []string {
	c.T.Helper()

	var written []string

	for name, version := range c.versions() {
		if before[name] != version {
			written = append(written, name)
		}
	}

	running := 0

	for _, vm := range c.PVE.Snapshot().VMs {
		if vm.Status == "running" {
			running++
		}
	}

	if machines := len(before) - 1; running != machines {
		c.T.Errorf("%d of %d VMs run\n%s", running, machines, c.operators.Logs())
	}

	return written
}
