// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Pool holds what is needed of a RunnerPool to decide which jobs it serves.
type Pool struct {
	Namespace, Name string
	// Priority among the pools that can run a job; the highest comes first.
	Priority int32
	// Max is how many machines the pool may have.
	Max int
	// Runner describes the pool's runners.
	Runner workload.RunnerSpec
	// SizeLabels are the labels with which jobs may request a size. Template is the name of the
	// pool's first template.
	SizeLabels *v1alpha1.SizeLabels
	Template   string
	// LabelMatch is the pool's labelMatch. Empty means LabelMatchAll.
	LabelMatch string
	// Templates of the pool's namespace that are known.
	Templates Templates
	// Rules of the pool's platform. Nil means that the platform is unknown and the pool can run no
	// job.
	Rules Rules
}

// Rules decide which jobs a platform assigns to which runners; see workload.Platform.
type Rules interface {
	MatchJob(runner workload.RunnerSpec, job workload.Job) workload.JobMatch
}

// Platforms by workload type.
type Platforms map[string]workload.Platform

// isHosted reports whether the labels of a job name the platform's own machines. An organization's webhook also sends
// these jobs, and the operator ignores them if no pool can run them.
func (p Platforms) isHosted(job workload.Job) bool {
	platform, ok := p[job.Platform]
	if !ok {
		return false
	}

	hosted := platform.Traits().IsHostedJob

	return hosted != nil && hosted(job.Labels)
}

// NewPool returns the Pool of a RunnerPool. The pool's template may be missing from templates. A
// pool whose scope is set in a missing template can run no job.
func (p Platforms) NewPool(pool *v1alpha1.RunnerPool, templates Templates) Pool {
	out := Pool{
		Namespace: pool.Namespace, Name: pool.Name, Priority: pool.Spec.Priority, Max: int(pool.Spec.Scaling.MaxReplicas),
		Runner:     workload.RunnerSpec{Platform: pool.Spec.Workload.Type},
		SizeLabels: pool.Spec.SizeLabels, Template: pool.Spec.TemplateRef.Name, Templates: templates,
		LabelMatch: pool.Spec.LabelMatch,
	}

	if pool.Spec.Paused {
		out.Max = 0 // other pools serve its jobs, or the jobs wait until it resumes
	}

	platform, ok := p[pool.Spec.Workload.Type]
	if !ok {
		return out
	}

	// The error is ignored here: the conditions of the template and of the claims report it.
	out.Runner, _ = platform.ResolveRunner(templates[out.Template], pool.Spec.Workload)
	out.Rules = platform

	return out
}

// Key returns the pool's namespace and name.
func (p Pool) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// ListPools returns the pools of a namespace that are not being deleted. An empty namespace means
// all namespaces.
func (p Platforms) ListPools(ctx context.Context, reader client.Reader, namespace string) ([]Pool, error) {
	read, err := p.readPools(ctx, reader, namespace)
	if err != nil {
		return nil, err
	}

	out := make([]Pool, 0, len(read))

	for _, pool := range read {
		if pool.object.DeletionTimestamp.IsZero() {
			out = append(out, pool.Pool)
		}
	}

	return out, nil
}

// loadedPool is a Pool with the objects that it was built from. The template is nil if it is
// missing.
type loadedPool struct {
	Pool

	object   *v1alpha1.RunnerPool
	template *v1alpha1.HypervisorMachineTemplate
}

// readPools returns the pools of a namespace, or of all namespaces if namespace is empty. The
// objects belong to the cache and must not be changed.
func (p Platforms) readPools(ctx context.Context, reader client.Reader, namespace string) ([]loadedPool, error) {
	var (
		pools     v1alpha1.RunnerPoolList
		templates v1alpha1.HypervisorMachineTemplateList
	)

	if err := reader.List(ctx, &pools, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list runner pools: %w", err)
	}

	if err := reader.List(ctx, &templates, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list machine templates: %w", err)
	}

	byNamespace := map[string]Templates{}

	for i := range templates.Items {
		template := &templates.Items[i]
		if byNamespace[template.Namespace] == nil {
			byNamespace[template.Namespace] = Templates{}
		}

		byNamespace[template.Namespace][template.Name] = template
	}

	out := make([]loadedPool, 0, len(pools.Items))

	for i := range pools.Items {
		pool := &pools.Items[i]
		known := byNamespace[pool.Namespace]
		out = append(out, loadedPool{Pool: p.NewPool(pool, known), object: pool, template: known[pool.Spec.TemplateRef.Name]})
	}

	return out, nil
}
