// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

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

// isHosted reports whether a job is for the platform's own machines, unless a pool can run it. An
// organization's webhook sends these jobs too, and the operator has nothing to do for them.
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

// evaluateFit applies the platform's rules to the job and to the runner that the pool would create
// for it, which has the labels of the size that the job requests.
func (p Pool) evaluateFit(job workload.Job) workload.JobMatch {
	if p.Rules == nil || p.Runner.Platform != job.Platform || job.LabelsUnknown {
		return workload.JobMatch{}
	}

	size, refusal := p.ParseSize(job)
	runner := p.Runner
	runner.Labels = slices.Concat(runner.Labels, size.Labels)

	fit := p.Rules.MatchJob(runner, job)
	if fit.Matched && refusal != "" {
		fit.Matched, fit.Message = false, refusal
	}

	return fit
}

// hasScopeOf reports whether the pool's runners belong to the scope of a job. It ignores the job's
// labels, so that it also works for a webhook of which only the scope is known.
func (p Pool) hasScopeOf(job workload.Job) bool {
	job.LabelsUnknown = false

	return p.evaluateFit(job).InScope
}

// Match returns the pool that serves a job, and false if there is none. Of the pools whose runners
// the platform assigns the job to, it chooses the highest priority, and then the first by namespace
// and name.
func Match(job workload.Job, pools []Pool) (Pool, bool) {
	var (
		best  Pool
		found bool
	)

	for _, pool := range pools {
		if pool.canRun(job) && (!found || comparePools(pool, best) < 0) {
			best, found = pool, true
		}
	}

	return best, found
}

func (p Pool) canRun(job workload.Job) bool { return p.evaluateFit(job).Matched }

// comparePools orders pools by descending priority, then by namespace and name.
func comparePools(a, b Pool) int {
	return cmp.Or(-cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Reasons of Explain, for the condition Matched.
const (
	ReasonMatched       = "Matched"
	ReasonNoPool        = "NoPool"
	ReasonNoScope       = "NoPoolForScope"
	ReasonNoLabels      = "NoPoolWithLabels"
	ReasonNotOffered    = "NotOffered"
	ReasonSizeRefused   = "SizeNotAllowed"
	ReasonLabelsUnknown = "LabelsUnknown"
)

// Explain returns why none of the pools can run the job, as a reason and a message with the fix. If
// pools have the job's scope but lack labels, the message names the pool that lacks the fewest.
func Explain(job workload.Job, pools []Pool) (string, string) {
	if job.LabelsUnknown {
		return ReasonLabelsUnknown, "the platform's webhook does not contain the job's labels: the operator asks the platform"
	}

	pools = slices.DeleteFunc(slices.Clone(pools), func(p Pool) bool { return p.Runner.Platform != job.Platform })
	if len(pools) == 0 {
		return ReasonNoPool, fmt.Sprintf("this namespace has no RunnerPool of type %s: create one", job.Platform)
	}

	pools = slices.DeleteFunc(pools, func(p Pool) bool { return !p.hasScopeOf(job) })
	if len(pools) == 0 {
		return ReasonNoScope, fmt.Sprintf("no RunnerPool in this namespace serves %s: "+
			"set the scope in workload.config of a pool, or in its template's bootstrap.config", job.Repository)
	}

	slices.SortFunc(pools, func(a, b Pool) int {
		missingA, missingB := len(a.evaluateFit(job).MissingLabels), len(b.evaluateFit(job).MissingLabels)

		return cmp.Or(cmp.Compare(missingA, missingB), cmp.Compare(a.Name, b.Name))
	})

	for _, pool := range pools {
		fit := pool.evaluateFit(job)
		if _, refusal := pool.ParseSize(job); refusal != "" && fit.Message == refusal {
			return ReasonSizeRefused, refusal
		}

		if len(fit.MissingLabels) > 0 {
			return ReasonNoLabels, fmt.Sprintf("no RunnerPool has all labels of the job [%s]: "+
				"RunnerPool %s comes closest and lacks [%s]; add them to the pool's workload.config, or change the job's labels",
				strings.Join(job.Labels, ", "), pool.Name, strings.Join(fit.MissingLabels, ", "))
		}
	}

	return ReasonNotOffered, pools[0].evaluateFit(job).Message
}
