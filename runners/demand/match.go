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

// Pool is what has to be known of a RunnerPool to tell which jobs it takes.
type Pool struct {
	Namespace, Name string
	// Priority among the pools that take a job; the highest comes first.
	Priority int32
	// Max is how many machines the pool may have.
	Max int
	// Runner is what its runners are.
	Runner workload.RunnerSpec
	// SizeLabels are those by which its jobs may ask for a size. Template is its first one.
	SizeLabels *v1alpha1.SizeLabels
	Template   string
	// Templates of its namespace, as far as they are known.
	Templates Templates
	// Rules of its platform; nil where the platform is not known here: then it takes no
	// job.
	Rules Rules
}

// Rules tell which jobs a platform offers to runners; see workload.Platform.
type Rules interface {
	Fit(runner workload.RunnerSpec, job workload.Job) workload.Fit
}

// Platforms by workload type.
type Platforms map[string]workload.Platform

// hosted tells whether a job is for the platform's own machines, unless a pool takes it. An
// organisation's webhooks speak of all those jobs too, and nobody here could do anything
// about them.
func (p Platforms) hosted(job workload.Job) bool {
	platform, ok := p[job.Platform]
	if !ok {
		return false
	}

	hosted := platform.Traits().Hosted

	return hosted != nil && hosted(job.Labels)
}

// PoolOf reads a RunnerPool. Its template may be missing where it is not known (yet): then a
// pool that leaves its scope to the template takes no job.
func (p Platforms) PoolOf(pool *v1alpha1.RunnerPool, templates Templates) Pool {
	out := Pool{
		Namespace: pool.Namespace, Name: pool.Name, Priority: pool.Spec.Priority, Max: int(pool.Spec.Scaling.MaxReplicas),
		Runner:     workload.RunnerSpec{Platform: pool.Spec.Workload.Type},
		SizeLabels: pool.Spec.SizeLabels, Template: pool.Spec.TemplateRef.Name, Templates: templates,
	}

	if pool.Spec.Paused {
		out.Max = 0 // its jobs go over to other pools, or wait for it
	}

	platform, ok := p[pool.Spec.Workload.Type]
	if !ok {
		return out
	}

	// What is wrong with the settings is in the template's and the claims' conditions.
	out.Runner, _ = platform.Runner(templates[out.Template], pool.Spec.Workload)
	out.Rules = platform

	return out
}

// Key is the pool's namespace and name.
func (p Pool) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// fit asks the platform's rules about the runner that would be made for the job: it has the
// labels of the size that the job asks for.
func (p Pool) fit(job workload.Job) workload.Fit {
	if p.Rules == nil || p.Runner.Platform != job.Platform || job.LabelsUnknown {
		return workload.Fit{}
	}

	size, refusal := p.Size(job)
	runner := p.Runner
	runner.Labels = slices.Concat(runner.Labels, size.Labels)

	fit := p.Rules.Fit(runner, job)
	if fit.Takes && refusal != "" {
		fit.Takes, fit.Why = false, refusal
	}

	return fit
}

// covers tells whether the pool's runners belong to the scope of a job, or of a webhook
// that has only a scope.
func (p Pool) covers(job workload.Job) bool {
	job.LabelsUnknown = false

	return p.fit(job).Covers
}

// Match gives the pool that answers for a job, and false if none does: of those whose
// runners the platform offers the job, the one of the highest priority; of equals the
// first by namespace and name.
func Match(job workload.Job, pools []Pool) (Pool, bool) {
	var (
		best  Pool
		found bool
	)

	for _, pool := range pools {
		if pool.takes(job) && (!found || order(pool, best) < 0) {
			best, found = pool, true
		}
	}

	return best, found
}

func (p Pool) takes(job workload.Job) bool { return p.fit(job).Takes }

// order puts the pool first that comes first to a job.
func order(a, b Pool) int {
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

// Explain says why no pool of those takes the job, as a reason and a message that names
// the fix: of the pools that cover the job's scope, the one that comes closest and the
// labels that it lacks.
func Explain(job workload.Job, pools []Pool) (string, string) {
	if job.LabelsUnknown {
		return ReasonLabelsUnknown, "the platform's webhook does not tell the job's labels: the platform is asked"
	}

	pools = slices.DeleteFunc(slices.Clone(pools), func(p Pool) bool { return p.Runner.Platform != job.Platform })
	if len(pools) == 0 {
		return ReasonNoPool, fmt.Sprintf("there is no RunnerPool of type %s in this namespace: make one", job.Platform)
	}

	pools = slices.DeleteFunc(pools, func(p Pool) bool { return !p.covers(job) })
	if len(pools) == 0 {
		return ReasonNoScope, fmt.Sprintf("no RunnerPool in this namespace serves %s: "+
			"set the scope in workload.config of a pool, or in its template's bootstrap.config", job.Repository)
	}

	slices.SortFunc(pools, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(len(a.fit(job).Missing), len(b.fit(job).Missing)), cmp.Compare(a.Name, b.Name))
	})

	for _, pool := range pools {
		fit := pool.fit(job)
		if _, refusal := pool.Size(job); refusal != "" && fit.Why == refusal {
			return ReasonSizeRefused, refusal
		}

		if len(fit.Missing) > 0 {
			return ReasonNoLabels, fmt.Sprintf("no RunnerPool has all labels of the job [%s]: "+
				"RunnerPool %s comes closest and lacks [%s]; add them to the pool's workload.config, or change what the job asks for",
				strings.Join(job.Labels, ", "), pool.Name, strings.Join(fit.Missing, ", "))
		}
	}

	return ReasonNotOffered, pools[0].fit(job).Why
}
