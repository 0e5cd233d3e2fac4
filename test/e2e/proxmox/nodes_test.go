// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/progress"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

// nodesPatience is longer than a cluster takes to forget a node that is silent: five minutes.
const nodesPatience = 10 * time.Minute

// cluster is an operator that makes machines of claims on a Proxmox VE of three nodes.
type cluster struct {
	*fleet.Fleet

	site *realpve.Site
	sayf func(string, ...any)
	// claims that are wanted, by name.
	claims map[string]*v1alpha1.MachineClaim
}

// Three nodes: machines are spread over them. One hangs, one is cut off, one is gone for good,
// while machines are made, run and are removed: the others go on, and nothing is made twice,
// lost, or called gone that is there.
func TestThreeNodes(t *testing.T) {
	long(t)

	c := newCluster(t)
	c.make("first", 6)
	c.run("first")

	for _, node := range c.site.Nodes() {
		if n := len(c.on(node)); n != 2 {
			t.Errorf("%d of six machines are on node %s, want two", n, node)
		}
	}

	for _, row := range []struct {
		name, node string
		trouble    realpve.Trouble
	}{{"hung", "pve2", realpve.Hang}, {"cut", "pve3", realpve.Cut}} {
		heal, removed := c.trouble(row.name, row.node, row.trouble, 2)
		heal()
		c.sayf("node %s is well again", row.node)
		c.run(row.name)
		c.gone(removed)
		c.whole()
	}

	_, removed := c.trouble("lost", "pve2", realpve.Cut, 2)

	c.site.Forgotten(t, "pve2")
	c.refresh()
	c.sayf("the cluster tells no status of the machines of node pve2 any more")
	c.whole()

	lost := c.on("pve2")

	c.site.RemoveNode(t, "pve2")
	c.sayf("node pve2 is removed from the cluster, and with it the machines of %q", lost)
	c.gone(removed)
	c.sayf("claim %s is gone, whose machine was to be removed", removed)

	for _, name := range lost {
		if name != removed && started(c.claims[name]) {
			c.ended(name)
		}
	}

	// What was half made there is made elsewhere.
	c.run("lost-early")
	c.whole()

	for name := range c.claims {
		c.remove(name)
	}

	c.Eventually("nothing being left", func() (bool, string) {
		machines, isos, err := c.site.Machines(t.Context())
		if err != nil {
			return false, err.Error()
		}

		return len(machines) == 1 && len(isos) == 0, fmt.Sprint(machines, isos)
	})
}

func newCluster(t *testing.T) *cluster {
	t.Helper()

	site := realpve.NewCluster(t, 3) //nolint:mnd // the fewest of which one can be lost
	part := site.Part(t, site.Account(t, realpve.ByPool))

	ctrl.SetLogger(logr.Discard()) // the fleet hands its manager a logger of its own

	env := kube.Start(t, kube.WithCRDs("../../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
	c := &cluster{
		Fleet: fleet.New(t, env, fleet.Options{}), site: site, sayf: progress.From(t), claims: map[string]*v1alpha1.MachineClaim{},
	}
	c.Patience, c.Poll = nodesPatience, time.Second
	c.Hypervisors["proxmox"] = func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
		own := part.Config()
		own.Name = config.Name

		return proxmox.New(own, options)
	}

	id := int32(site.Template)
	template := c.NewTemplate()
	template.Spec.Template.Proxmox = &v1alpha1.ProxmoxTemplate{TemplateID: &id}
	template.Spec.Resources = v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("64Mi")}

	c.CreateCluster(c.NewCluster())
	c.Create(template)
	c.Start()
	c.EventuallyReady(template)

	return c
}

// make makes claims whose names begin so. Nothing boots in their machines, and no runner is
// waited for.
func (c *cluster) make(name string, n int) {
	c.T.Helper()

	for i := range n {
		claim := c.NewClaim(fmt.Sprintf("%s-%d", name, i))
		claim.Spec.Lifecycle = &v1alpha1.Lifecycle{BootstrapTimeout: &metav1.Duration{Duration: time.Hour}}
		c.Create(claim)
		c.claims[claim.Name] = claim
	}
}

// read reads a claim; it is nil once it is gone.
func (c *cluster) read(name string) *v1alpha1.MachineClaim {
	c.T.Helper()

	claim := &v1alpha1.MachineClaim{}

	err := c.Client.Get(c.T.Context(), client.ObjectKey{Namespace: c.Namespace, Name: name}, claim)
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		c.T.Fatal(err)
	}

	return claim
}

// refresh reads the claims anew.
func (c *cluster) refresh() {
	c.T.Helper()

	for name := range c.claims {
		if claim := c.read(name); claim != nil {
			c.claims[name] = claim
		}
	}
}

// run waits until the machines of the wanted claims whose names begin so run.
func (c *cluster) run(prefix string) {
	c.T.Helper()
	c.Eventually("the machines of "+prefix+" running", func() (bool, string) {
		for name := range c.claims {
			if !strings.HasPrefix(name, prefix) {
				continue
			}

			claim := c.read(name)
			if !started(claim) {
				return false, name + ": " + waitsFor(claim)
			}

			c.claims[name] = claim
		}

		return true, ""
	})
	c.sayf("the machines of %s run", prefix)
}

// waitsFor is a claim's phase, and what holds it up.
func waitsFor(claim *v1alpha1.MachineClaim) string {
	words := []string{string(claim.Status.Phase)}

	for _, condition := range claim.Status.Conditions {
		if condition.Status == metav1.ConditionFalse {
			words = append(words, fmt.Sprintf("%s %s: %s", condition.Type, condition.Reason, condition.Message))
		}
	}

	return strings.Join(words, "; ")
}

// started tells whether a claim's machine ran when the claim was read.
func started(claim *v1alpha1.MachineClaim) bool {
	return claim.Status.Times != nil && claim.Status.Times.Started != nil
}

// on are the claims whose machines the cluster's files have on a node. They are there whatever
// trouble the node has.
func (c *cluster) on(node string) []string {
	c.T.Helper()

	var out []string

	for _, file := range c.site.Files(c.T) {
		for name, claim := range c.claims {
			if file.Node == node && strings.Contains(file.Text, string(claim.UID)) {
				out = append(out, name)
			}
		}
	}

	slices.Sort(out)

	return out
}

// remove deletes a claim.
func (c *cluster) remove(name string) {
	c.T.Helper()

	if err := client.IgnoreNotFound(c.Client.Delete(c.T.Context(), c.claims[name])); err != nil {
		c.T.Fatal(err)
	}
}

// gone waits until a claim that was deleted is gone, and its machine with it.
func (c *cluster) gone(name string) {
	c.T.Helper()
	c.Eventually("claim "+name+" being gone", func() (bool, string) {
		claim := c.read(name)

		return claim == nil, ""
	})

	uid := string(c.claims[name].UID)
	delete(c.claims, name)

	for _, file := range c.site.Files(c.T) {
		if strings.Contains(file.Text, uid) {
			c.T.Errorf("claim %s is gone, its machine %d on node %s is there", name, file.ID, file.Node)
		}
	}
}

// ended waits until a claim says that its machine is over, and forgets it.
func (c *cluster) ended(name string) {
	c.T.Helper()
	c.Eventually("claim "+name+" being over", func() (bool, string) {
		claim := c.read(name)
		if claim == nil {
			return true, ""
		}

		return claim.Status.EndReason != "", string(claim.Status.Phase)
	})
	c.sayf("claim %s says that its machine is over", name)
	c.remove(name)
	c.gone(name)
}

// whole makes sure that each claim has at most one machine, that there is none beside them, and
// that what ran has not ended.
func (c *cluster) whole() {
	c.T.Helper()

	machines := map[string]int{}

	for _, file := range c.site.Files(c.T) {
		if !strings.Contains(file.Text, c.OperatorUID) {
			continue
		}

		owner := fmt.Sprintf("nobody (machine %d on node %s)", file.ID, file.Node)

		for name, claim := range c.claims {
			if strings.Contains(file.Text, string(claim.UID)) {
				owner = name
			}
		}

		machines[owner]++
		if c.claims[owner] == nil || machines[owner] > 1 {
			c.T.Errorf("%d machines of %s", machines[owner], owner)
		}
	}

	for name, before := range c.claims {
		claim := c.read(name)

		switch {
		case claim != nil && claim.DeletionTimestamp != nil:
		case claim == nil || claim.Status.EndReason != "" || claim.Status.Phase == v1alpha1.MachineClaimFailed:
			c.T.Errorf("claim %s was not to end: %+v", name, claim)
		case started(before) && machines[name] != 1:
			c.T.Errorf("%d machines of %s, which ran", machines[name], name)
		}
	}
}

// noticed waits until the operator knows that a node is offline, too: what it knows of nodes is up to
// ten seconds old.
func (c *cluster) noticed() {
	c.T.Helper()
	c.Eventually("the operator knowing that a node is offline", func() (bool, string) {
		cluster := c.NewCluster()
		if err := c.Client.Get(c.T.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil {
			return false, err.Error()
		}

		online := int(cluster.Status.ConnectedNodes)

		return online < len(c.site.Nodes()), fmt.Sprintf("%d nodes are online", online)
	})
}

// trouble puts a node into trouble, and makes and removes machines meanwhile. Those of the claims
// called NAME-early may be caught on the node; all others are made elsewhere. It gives the claim
// of a machine of the node that was deleted, and waits for it.
func (c *cluster) trouble(name, node string, trouble realpve.Trouble, early int) (heal func(), removed string) {
	c.T.Helper()

	here := c.on(node)
	there := slices.DeleteFunc(slices.Concat(c.on("pve1"), c.on("pve2"), c.on("pve3")),
		func(name string) bool { return slices.Contains(here, name) })

	if len(here) == 0 || len(there) == 0 {
		c.T.Fatalf("machines on node %s: %q, elsewhere: %q", node, here, there)
	}

	removed = here[0]
	heal = c.site.Trouble(c.T, node, trouble)
	c.sayf("node %s: %s; machines on it: %q", node, trouble, here)
	c.make(name+"-early", early)
	c.remove(removed)
	c.remove(there[0])
	c.gone(there[0])
	c.sayf("the machine of %s is removed", there[0])
	c.site.Offline(c.T, node)
	c.noticed()
	c.make(name+"-late", 3)
	c.run(name + "-late")

	if caught := c.on(node); slices.ContainsFunc(caught, func(s string) bool { return strings.HasPrefix(s, name+"-late-") }) {
		c.T.Errorf("machines that were made on node %s, which is offline: %q", node, caught)
	}

	held := c.read(removed)
	if held == nil || !slices.Contains(c.on(node), removed) {
		c.T.Fatalf("claim %s is called gone while its machine can't be", removed)
	}

	c.whole()

	return heal, removed
}
