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
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// source is a template that machines of the pool can be made from.
type source struct {
	name     string
	template *v1alpha1.HypervisorMachineTemplate
	// why no machine can be made from it now; empty if one can.
	why string
	// hash of what a machine is made from.
	hash string
	// machines that the pool has of it; full says that one waited for room lately.
	machines int
	full     bool
	// onRequest says that machines are made from it only where a job asks for its image.
	onRequest bool
}

func (s *source) usable() bool { return s.why == "" }

// outdates says whether a claim was made from what the template and the pool's workload
// are no longer. A template that can't replace it outdates nothing, unless it is to go.
func (s *source) outdates(claim *v1alpha1.MachineClaim) bool {
	if s.template != nil && !s.template.DeletionTimestamp.IsZero() {
		return true
	}

	made := claim.Annotations[v1alpha1.AnnotationTemplateHash]

	return s.usable() && made != "" && made != s.hash
}

// findSources finds the pool's templates and whether machines can be made from them.
func (s *scope) findSources(ctx context.Context, templates demand.Templates) error {
	s.sources = nil
	names := s.pool.Spec.Templates()
	usual := len(names)

	if sizes := s.pool.Spec.SizeLabels; sizes != nil {
		for _, image := range sizes.Images {
			if !slices.Contains(names, image.TemplateRef.Name) {
				names = append(names, image.TemplateRef.Name)
			}
		}
	}

	for i, name := range names {
		found := source{name: name, template: templates[name], onRequest: i >= usual}

		why, err := s.whyNot(ctx, found)
		if err != nil {
			return err
		}

		found.why = why

		if found.template != nil {
			if found.hash, err = hashOf(found.template, &s.pool.Spec.Workload); err != nil {
				return err
			}
		}

		s.sources = append(s.sources, found)
	}

	return nil
}

// whyNot says why no machine can be made from a template.
func (s *scope) whyNot(ctx context.Context, found source) (string, error) {
	if found.template == nil {
		return fmt.Sprintf("there is no HypervisorMachineTemplate %q: create it, or correct the pool's spec", found.name), nil
	}

	if !found.template.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("HypervisorMachineTemplate %q is being deleted", found.name), nil
	}

	if !step.IsReady(found.template) {
		return fmt.Sprintf("HypervisorMachineTemplate %q is not ready: %s", found.name, step.WhyNot(found.template)), nil
	}

	var cluster v1alpha1.HypervisorCluster

	name := found.template.Spec.HypervisorClusterRef.Name
	err := s.Client.Get(ctx, types.NamespacedName{Name: name}, &cluster)

	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("there is no HypervisorCluster %q, which HypervisorMachineTemplate %q names", name, found.name), nil
	case err != nil:
		return "", fmt.Errorf("get cluster %s: %w", name, err)
	case !step.IsReady(&cluster):
		return fmt.Sprintf("HypervisorCluster %q of HypervisorMachineTemplate %q is not ready: %s",
			name, found.name, step.WhyNot(&cluster)), nil
	}

	return "", nil
}

// hashLength is how many hexadecimal digits of the digest are kept.
const hashLength = 16

// hashOf is a digest of what a machine is made from. How webhooks are signed is not part
// of it: no machine knows.
func hashOf(template *v1alpha1.HypervisorMachineTemplate, workload *v1alpha1.Workload) (string, error) {
	own := workload.DeepCopy()
	own.Webhook = nil

	raw, err := json.Marshal([]any{template.Name, template.Spec, own})
	if err != nil {
		return "", fmt.Errorf("encode template %s: %w", template.Name, err)
	}

	sum := sha256.Sum256(raw)

	return hex.EncodeToString(sum[:])[:hashLength], nil
}

// templateReady holds new machines back while none could be made. Where one of several
// templates works, the pool goes on with it and says so.
func templateReady(_ context.Context, s *scope) step.Result {
	var works, broken []string

	for i := range s.sources {
		switch {
		case !s.sources[i].usable():
			broken = append(broken, s.sources[i].why)
		case !s.sources[i].onRequest:
			works = append(works, s.sources[i].name)
		}
	}

	switch first := &s.sources[0]; {
	case len(broken) == 0:
		return step.Done()
	case len(works) > 0:
		return step.Done().WithReason("SomeTemplatesNotReady",
			fmt.Sprintf("machines are made from %s; %s", strings.Join(works, ", "), strings.Join(broken, "; ")))
	case first.template == nil:
		return step.Stall("TemplateNotFound", strings.Join(broken, "; "))
	default:
		return step.Wait(0, "TemplateNotReady", strings.Join(broken, "; "))
	}
}

// ofImage are the sources of machines of an image; empty means of none that was asked for.
func ofImage(sources []source, template string) []source {
	return slices.DeleteFunc(slices.Clone(sources), func(s source) bool {
		return template == "" && s.onRequest || template != "" && s.name != template
	})
}

// assign chooses the templates of n machines, one after the other, of those that work. To
// spread, the one with the fewest machines of the pool; to pack, the first. One whose
// cluster had no room lately comes after those that had; of equals the first in the
// pool's spec. It is pure.
func assign(strategy string, sources []source, n int) []*source {
	work := make([]source, 0, len(sources))
	order := map[string]int{}

	for i := range sources {
		if sources[i].usable() {
			order[sources[i].name] = i
			work = append(work, sources[i])
		}
	}

	if len(work) == 0 {
		return nil
	}

	out := make([]*source, 0, n)

	for range n {
		best := slices.MinFunc(work, func(a, b source) int {
			byCount := cmp.Compare(a.machines, b.machines)
			if strategy == v1alpha1.PlacementPack {
				byCount = 0
			}

			return cmp.Or(compareBool(a.full, b.full), byCount, cmp.Compare(order[a.name], order[b.name]))
		})
		at := slices.IndexFunc(work, func(s source) bool { return s.name == best.name })
		work[at].machines++
		out = append(out, &sources[order[best.name]])
	}

	return out
}

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
