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

// Restart holds the measurements of one start of the operator.
type Restart struct {
	// Duration is the time until the operator has reconciled every claim.
	Duration time.Duration
	// RSS is the operator's peak resident memory in bytes.
	RSS int64
	// ChangedObjects are the names of the claims that the operator has written between its start and writeDelay
	// after Duration. They also contain the template if its condition Ready has changed.
	ChangedObjects []string
}

// writeDelay is the time after which the operator has written all status changes. It collects them in memory before
// it writes them.
const writeDelay = 7 * time.Second

// claimSet is a set of claims whose machines wait for a job.
type claimSet struct {
	*fleet.Fleet

	operators *operatorRunner
	// first is the claim that the operator has created a machine for. All other claims are copies of it. firstVM
	// is its machine.
	first   v1alpha1.MachineClaim
	firstVM pve.VMState
}

// MeasureRestart starts an operator with default settings while a number of machines wait for a job, and
// returns its measurements. The operator has created only one of the machines. The others are copies of it
// with other names, at the API server and at the hypervisor.
func MeasureRestart(tb testing.TB, env *kube.Env, binary string, machines int) Restart {
	tb.Helper()

	f := fleet.New(tb, env, fleet.Options{})
	urls := f.Runners.PlatformURLs
	f.Runners = config.Default().Runners
	f.Runners.PlatformURLs = urls

	c := &claimSet{Fleet: f, operators: newOperatorRunner(tb, f, binary, noElection(), f.Env.Config, config.AreaRunners)}
	f.Front.Serve(c.operators.front)
	c.createFirst()
	f.Front.Serve(http.NotFoundHandler()) // drop further reports of the first machine, which would change its status
	c.createCopies(machines - 1)

	before, startTime := c.listVersions(), time.Now()
	c.start()

	for c.readMetric("controller_runtime_reconcile_total") < float64(machines) || c.readMetric("workqueue_depth") > 0 {
		if time.Since(startTime) > 10*waitTimeout {
			tb.Fatalf("the operator has not reconciled all claims\n%.20000s", c.operators.Logs())
		}

		time.Sleep(f.PollInterval)
	}

	out := Restart{Duration: time.Since(startTime)}

	time.Sleep(writeDelay)

	out.RSS = c.stopOperator()
	tb.Logf("%d machines: all reconciled after %s, peak memory %d MiB", machines, out.Duration.Round(time.Millisecond), out.RSS>>20)
	out.ChangedObjects = c.findChanged(before)

	return out
}

func (c *claimSet) start() {
	c.T.Helper()

	if err := c.operators.start(c.T.Context()); err != nil {
		c.T.Fatalf("%v\n%.20000s", err, c.operators.Logs())
	}
}

// stopOperator kills the operator, and returns its peak resident memory in bytes.
func (c *claimSet) stopOperator() int64 {
	c.operators.mu.Lock()
	process := c.operators.process
	c.operators.mu.Unlock()
	c.operators.kill()

	return process.MaxRSS()
}

// createFirst runs an operator until it has created a machine for the first claim, then stops it.
func (c *claimSet) createFirst() {
	c.T.Helper()

	c.CreateCluster(c.NewCluster())
	c.Create(c.NewTemplate())
	c.start()

	claim := c.NewClaim("machine")
	c.Create(claim)
	c.EventuallyReady(claim)
	c.stopOperator()

	c.first = *claim

	for _, vm := range c.PVE.Snapshot().VMs {
		if strings.Contains(vm.Config["description"], string(claim.UID)) {
			c.firstVM = vm
		}
	}
}

// createCopies creates copies of the first claim, and starts a hypervisor with copies of its machine.
func (c *claimSet) createCopies(copies int) {
	c.T.Helper()

	const writers = 8

	vms := make([]pve.VM, copies+1)
	vms[copies] = c.copyVM(c.first.Name, string(c.first.UID), c.firstVM.VMID)

	var all errgroup.Group

	all.SetLimit(writers)

	for i := range copies {
		all.Go(func() error {
			vmid := c.firstVM.VMID + 1 + i

			claim := c.first.DeepCopy()
			claim.ObjectMeta = metav1.ObjectMeta{
				Namespace: c.Namespace, Name: c.first.Name + "-" + strconv.Itoa(i), Finalizers: c.first.Finalizers,
				Labels: c.first.Labels, Annotations: c.first.Annotations,
			}

			if err := c.Client.Create(c.T.Context(), claim); err != nil {
				return err
			}

			vms[i] = c.copyVM(claim.Name, string(claim.UID), vmid)

			status, err := json.Marshal(c.first.Status)
			if err != nil {
				return err
			}

			status = []byte(c.newReplacer(claim.Name, string(claim.UID), vmid).Replace(string(status)))
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

	// Make the new spec look as if the operator had reconciled it already.
	cluster.Status.ObservedGeneration = cluster.Generation
	for i := range cluster.Status.Conditions {
		cluster.Status.Conditions[i].ObservedGeneration = cluster.Generation
	}

	if err := c.Client.Status().Update(c.T.Context(), cluster); err != nil {
		c.T.Fatal(err)
	}
}

// newReplacer returns a replacer of the first machine's names, UID and VMID with those of a copy.
func (c *claimSet) newReplacer(name, uid string, vmid int) *strings.Replacer {
	const short = 8 // the length of the UID prefix in runners' names

	first := string(c.first.UID)

	return strings.NewReplacer(
		first, uid, c.first.Name+"-"+first[:short], name+"-"+uid[:short], `"`+c.first.Name+`"`, `"`+name+`"`,
		strconv.Itoa(c.firstVM.VMID), strconv.Itoa(vmid),
	)
}

// copyVM returns a copy of the first machine with other names.
func (c *claimSet) copyVM(name, uid string, vmid int) pve.VM {
	own := c.newReplacer(name, uid, vmid)

	return pve.VM{
		VMID: vmid, Name: own.Replace(c.firstVM.Name), Node: c.firstVM.Node, Running: true, Storage: "local-lvm",
		Config: map[string]string{
			"description": own.Replace(c.firstVM.Config["description"]), "tags": own.Replace(c.firstVM.Config["tags"]),
		},
	}
}

// readMetric returns the value of a metric of the claim controller, -1 if the operator does not report it
// yet.
func (c *claimSet) readMetric(name string) float64 {
	value, err := scrape.Sum(c.T.Context(), "http://"+c.operators.metricsAddress+"/metrics", name, `"machineclaim"`)
	if err != nil {
		return -1
	}

	return value
}

// listVersions returns the resource versions of the claims by name. For the template, it returns only the
// last transition of condition Ready, because the rest of its status may change with the hypervisor.
func (c *claimSet) listVersions() map[string]string {
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

// findChanged returns the names of the objects that have changed since before. It fails the test if a
// machine has been stopped.
func (c *claimSet) findChanged(before map[string]string) []string {
	c.T.Helper()

	var written []string

	for name, version := range c.listVersions() {
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
		c.T.Errorf("%d of %d VMs are running\n%s", running, machines, c.operators.Logs())
	}

	return written
}
