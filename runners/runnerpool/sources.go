// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// source is a template from which the pool may create machines.
type source struct {
	name     string
	template *v1alpha1.HypervisorMachineTemplate
	// unusableReason is why no machine can be created from the template now; empty if one can. unusableSince is since
	// when.
	unusableReason string
	unusableSince  time.Time
	// nodes are the nodes of the template's cluster.
	nodes []v1alpha1.HypervisorNodeStatus
	// hash of the template and the workload; see computeHash.
	hash string
	// machines is how many machines the pool has from the template. isFull is true if a machine
	// recently waited for capacity on its cluster.
	machines int
	isFull   bool
	// wasFull is true if the source was full some time ago, so that it is unknown whether it has capacity.
	// unplaced is how many claims have no machine yet and may get one from the source: its own claims, and the
	// claims that will replace deleted ones.
	wasFull  bool
	unplaced int
	// needsRequest is true if machines are created from the template only for jobs that request its
	// image. All other jobs use the templates of the pool itself.
	needsRequest bool
}

func (s *source) isUsable() bool { return s.unusableReason == "" }

// isBeingTried reports whether it will soon be known whether a source that was full has capacity again.
func (s *source) isBeingTried() bool { return s.wasFull && s.unplaced > 0 }

const gib = 1 << 30

// canHold reports whether a node of the source's cluster has enough memory for a machine of this size if nothing else ran on
// it. It compares whole GiB, because the status of the cluster has whole GiB. A node of unknown size, and a cluster without
// known nodes, count as large enough.
func (s *source) canHold(size *v1alpha1.MachineSize) bool {
	if s.template == nil {
		return false
	}

	memory := &s.template.Spec.Resources.Memory
	if size != nil && size.Memory != nil {
		memory = size.Memory
	}

	needed := memory.Value() / gib * gib

	return len(s.nodes) == 0 || slices.ContainsFunc(s.nodes, func(node v1alpha1.HypervisorNodeStatus) bool {
		return node.Capacity == nil || node.Capacity.Memory.IsZero() || node.Capacity.Memory.Value() >= needed
	})
}

// sharesAddressPool reports whether the machines of two sources certainly get their addresses from the same pool.
func (s *source) sharesAddressPool(other *source) bool {
	if s.template == nil || other.template == nil {
		return false
	}

	a, b := &s.template.Spec, &other.template.Spec

	return a.Network.AddressPool() != nil && a.HypervisorClusterRef == b.HypervisorClusterRef &&
		reflect.DeepEqual(a.Network, b.Network) && kubevirtNetwork(a) == kubevirtNetwork(b)
}

// kubevirtNetwork returns the network that a template for KubeVirt names, or "".
func kubevirtNetwork(spec *v1alpha1.HypervisorMachineTemplateSpec) string {
	if spec.Template.KubeVirt == nil {
		return ""
	}

	return spec.Template.KubeVirt.Network
}

// isOutdated reports whether a claim was created from an earlier template or workload. If the
// template is unusable, it returns false, because no replacement could be created. If the template
// is being deleted, it returns true.
func (s *source) isOutdated(claim *v1alpha1.MachineClaim) bool {
	if s.template != nil && !s.template.DeletionTimestamp.IsZero() {
		return true
	}

	claimHash := claim.Annotations[v1alpha1.AnnotationTemplateHash]

	return s.isUsable() && claimHash != "" && claimHash != s.hash
}

// findSources finds the pool's templates and checks whether machines can be created from them.
func (s *scope) findSources(ctx context.Context, templates demand.Templates) error {
	s.sources = nil
	names := s.pool.Spec.Templates()
	ownTemplates := len(names)

	if sizes := s.pool.Spec.SizeLabels; sizes != nil {
		for _, image := range sizes.Images {
			if !slices.Contains(names, image.TemplateRef.Name) {
				names = append(names, image.TemplateRef.Name)
			}
		}
	}

	for i, name := range names {
		found := source{name: name, template: templates[name], needsRequest: i >= ownTemplates}

		if err := s.checkSource(ctx, &found); err != nil {
			return err
		}

		reason := found.unusableReason
		found.unusableSince = s.outages.record(name, reason != "", s.Clock.Now())

		if found.template != nil {
			var err error
			if found.hash, err = computeHash(found.template, &s.pool.Spec.Workload); err != nil {
				return err
			}
		}

		s.sources = append(s.sources, found)
	}

	return nil
}

// checkSource sets why no machine can be created from a template, empty if one can, and the nodes of its cluster.
func (s *scope) checkSource(ctx context.Context, found *source) error {
	if found.template == nil {
		found.unusableReason = fmt.Sprintf(
			"there is no HypervisorMachineTemplate %q: create it, or correct the pool's spec", found.name)

		return nil
	}

	name := found.template.Spec.HypervisorClusterRef.Name

	cluster, err := s.getCluster(ctx, name)
	if err != nil {
		return err
	}

	found.nodes = cluster.Status.Nodes

	switch {
	case !found.template.DeletionTimestamp.IsZero():
		found.unusableReason = fmt.Sprintf("HypervisorMachineTemplate %q is being deleted", found.name)
	case !step.IsReady(found.template):
		found.unusableReason = fmt.Sprintf(
			"HypervisorMachineTemplate %q is not ready: %s", found.name, step.NotReadyMessage(found.template))
	case cluster.Name == "":
		found.unusableReason = fmt.Sprintf(
			"there is no HypervisorCluster %q, which HypervisorMachineTemplate %q names", name, found.name)
	case !step.IsReady(cluster):
		found.unusableReason = fmt.Sprintf("HypervisorCluster %q of HypervisorMachineTemplate %q is not ready: %s",
			name, found.name, step.NotReadyMessage(cluster))
	}

	return nil
}

// getCluster returns the cluster with the name, which it reads once in a reconcile. If the cluster does not exist, the
// result has no name.
func (s *scope) getCluster(ctx context.Context, name string) (*v1alpha1.HypervisorCluster, error) {
	if known := s.clusters[name]; known != nil {
		return known, nil
	}

	cluster := &v1alpha1.HypervisorCluster{}

	err := s.Client.Get(ctx, types.NamespacedName{Name: name}, cluster)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get cluster %s: %w", name, err)
	}

	if s.clusters == nil {
		s.clusters = map[string]*v1alpha1.HypervisorCluster{}
	}

	s.clusters[name] = cluster

	return cluster, nil
}

// hashLength is how many hexadecimal digits of the digest are used.
const hashLength = 16

// computeHash returns a digest of the template and the workload from which a machine is created.
// The webhook settings are not part of it, because they do not affect machines. The hypervisor template that
// tags have selected is.
func computeHash(template *v1alpha1.HypervisorMachineTemplate, workload *v1alpha1.Workload) (string, error) {
	own := workload.DeepCopy()
	own.Webhook = nil

	parts := []any{template.Name, template.Spec, own}
	if selected := template.SelectedSource(); selected != "" {
		parts = append(parts, selected)
	}

	raw, err := json.Marshal(parts)
	if err != nil {
		return "", fmt.Errorf("encode template %s: %w", template.Name, err)
	}

	sum := sha256.Sum256(raw)

	return hex.EncodeToString(sum[:])[:hashLength], nil
}

// checkTemplates stops the reconcile while no machine can be created from any template. If some of
// the templates are usable, the pool continues with them and the condition names the others.
func checkTemplates(_ context.Context, s *scope) step.Result {
	var usable, unusable []string

	for i := range s.sources {
		switch {
		case !s.sources[i].isUsable():
			unusable = append(unusable, s.sources[i].unusableReason)
		case !s.sources[i].needsRequest:
			usable = append(usable, s.sources[i].name)
		}
	}

	switch first := &s.sources[0]; {
	case len(unusable) == 0:
		return step.Done()
	case len(usable) > 0:
		return step.Done().WithReason("SomeTemplatesNotReady",
			fmt.Sprintf("the pool creates machines from %s; %s", strings.Join(usable, ", "), strings.Join(unusable, "; ")))
	case first.template == nil:
		return step.Stall("TemplateNotFound", strings.Join(unusable, "; "))
	default:
		return step.Wait(0, "TemplateNotReady", strings.Join(unusable, "; "))
	}
}

// filterBySize returns the usable sources whose cluster has a node for a machine of the size. If there is none, it returns
// all sources.
func filterBySize(sources []source, size *v1alpha1.MachineSize) []source {
	fitting := slices.DeleteFunc(slices.Clone(sources), func(s source) bool { return !s.isUsable() || !s.canHold(size) })
	if len(fitting) == 0 {
		return sources
	}

	return fitting
}

// filterByImage returns the sources of machines with the image of a template. If template is empty,
// it returns the sources that need no request for an image.
func filterByImage(sources []source, template string) []source {
	return slices.DeleteFunc(slices.Clone(sources), func(s source) bool {
		return template == "" && s.needsRequest || template != "" && s.name != template
	})
}

// chooseSources chooses the templates of n machines, one after the other, from the usable sources.
// It returns nil if no source is usable.
//
// It chooses sources whose cluster recently had no capacity last. With the strategy Pack it then
// chooses the first source in the pool's spec. Otherwise it chooses the source with the fewest machines of the
// pool, and the first in the spec if several have the fewest. It is pure.
func chooseSources(strategy string, sources []source, n int) []*source {
	candidates := make([]source, 0, len(sources))
	order := map[string]int{}

	for i := range sources {
		if sources[i].isUsable() {
			order[sources[i].name] = i
			candidates = append(candidates, sources[i])
		}
	}

	if len(candidates) == 0 {
		return nil
	}

	out := make([]*source, 0, n)

	for range n {
		best := slices.MinFunc(candidates, func(a, b source) int {
			byCount := cmp.Compare(a.machines, b.machines)
			if strategy == v1alpha1.PlacementPack {
				byCount = 0
			}

			return cmp.Or(compareBool(a.isFull, b.isFull), byCount, cmp.Compare(order[a.name], order[b.name]))
		})
		index := slices.IndexFunc(candidates, func(s source) bool { return s.name == best.name })
		candidates[index].machines++
		out = append(out, &sources[order[best.name]])
	}

	return out
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}
