// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// evaluateFit applies the platform's rules to the job and to the runner that the pool would create
// for it, which has the labels of the size that the job requests.
func (p Pool) evaluateFit(job workload.Job) workload.JobMatch {
	if p.Rules == nil || p.Runner.Platform != job.Platform || job.LabelsUnknown {
		return workload.JobMatch{}
	}

	size, refusal := p.ParseSize(job)
	runner := p.Runner
	runner.Labels = slices.Concat(runner.Labels, size.Labels)

	fit := p.applyLabelMatch(p.Rules.MatchJob(runner, job), job)
	if refusal != "" && fit.InScope && (fit.Matched || p.LabelMatch == v1alpha1.LabelMatchAny) {
		fit.Matched, fit.Message, fit.MissingLabels = false, refusal, nil
	}

	return fit
}

// hasScopeOf reports whether the pool's runners belong to the scope of a job. It ignores the job's
// labels, so that it also works for a webhook of which only the scope is known.
func (p Pool) hasScopeOf(job workload.Job) bool {
	job.LabelsUnknown = false

	return p.evaluateFit(job).InScope
}

// withEnterprise returns the job with the enterprise of the pool. A platform does not say to which enterprise a
// job belongs, so the credentials of the pool that reports the job are the only proof.
func (p Pool) withEnterprise(job workload.Job) workload.Job {
	job.Enterprise = p.Runner.Scope.Enterprise

	return job
}

// pooled is a Pool, or a type that embeds one; asPool returns the Pool.
type pooled interface{ asPool() Pool }

func (p Pool) asPool() Pool { return p }

// listEnterprises returns the enterprises of the pools that report a job, by namespace. The enterprise of a
// namespace is empty if none of its pools has one.
func listEnterprises[P pooled](pools []P) map[string]string {
	out := map[string]string{}
	for _, pool := range pools {
		out[pool.asPool().Namespace] = cmp.Or(out[pool.asPool().Namespace], pool.asPool().Runner.Scope.Enterprise)
	}

	return out
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
func Explain(job workload.Job, pools []Pool) (reason, message string) {
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
		if _, refusal := pool.parseSizeLabels(job); refusal != "" && fit.Message == refusal {
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
