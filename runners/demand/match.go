// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// Pool is what has to be known of a RunnerPool to tell which jobs it takes.
type Pool struct {
	Namespace, Name string
	// Platform is the workload type.
	Platform string
	// Labels of its runners, default ones included.
	Labels []string
	// Scope of its runners: a repository as owner/name, or an organisation.
	Scope workload.Scope
}

// PoolOf reads a RunnerPool. Its template may be nil where it is not known (yet): then a
// pool that leaves its scope to the template takes no job.
func PoolOf(pool *v1alpha1.RunnerPool, template *v1alpha1.HypervisorMachineTemplate) Pool {
	out := Pool{Namespace: pool.Namespace, Name: pool.Name, Platform: pool.Spec.Workload.Type}
	if out.Platform != v1alpha1.WorkloadGitHubActions {
		return out
	}

	var config *v1alpha1.GitHubActionsConfig
	if pool.Spec.Workload.Config != nil {
		config = pool.Spec.Workload.Config.GitHub
	}

	if config != nil {
		out.Labels = config.Labels
	}

	out.Labels = github.RunnerLabels(out.Labels)
	out.Scope = github.ScopeOf(config, githubBootstrap(template))

	return out
}

func githubBootstrap(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.GitHubBootstrap {
	if template == nil || template.Spec.Bootstrap.Config == nil {
		return nil
	}

	return template.Spec.Bootstrap.Config.GitHub
}

// Key is the pool's namespace and name.
func (p Pool) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// Covers tells whether runners of the pool's scope are offered the jobs of a scope.
// GitHub writes owners and repositories without regard to case. An organisation's jobs
// are known by their repository's owner too: users and organisations share one set of
// names.
func (p Pool) Covers(of workload.Scope) bool {
	switch {
	case p.Scope.Repository != "":
		return strings.EqualFold(p.Scope.Repository, of.Repository)
	case p.Scope.Organization != "":
		owner, _, _ := strings.Cut(of.Repository, "/")

		return strings.EqualFold(p.Scope.Organization, of.Organization) || strings.EqualFold(p.Scope.Organization, owner)
	default:
		return false
	}
}

// missing gives the job's labels that the pool's runners don't have.
func (p Pool) missing(labels []string) []string {
	return slices.DeleteFunc(slices.Clone(labels), func(label string) bool {
		return slices.ContainsFunc(p.Labels, func(have string) bool { return strings.EqualFold(have, label) })
	})
}

func scopeOf(job workload.Job) workload.Scope {
	return workload.Scope{Repository: job.Repository, Organization: job.Organization}
}

// Match gives the pool that answers for a job, and false if none does: the first by
// namespace and name of those of its platform whose scope covers it and whose runners
// have all of its labels, without regard to case. A job without labels is nobody's:
// GitHub gives such a job to no self-hosted runner.
func Match(job workload.Job, pools []Pool) (Pool, bool) {
	var (
		best  Pool
		found bool
	)

	for _, pool := range pools {
		if pool.takes(job) && (!found || before(pool, best)) {
			best, found = pool, true
		}
	}

	return best, found
}

func (p Pool) takes(job workload.Job) bool {
	return p.Platform == job.Platform && len(job.Labels) > 0 && p.Covers(scopeOf(job)) && len(p.missing(job.Labels)) == 0
}

func before(a, b Pool) bool {
	return a.Namespace < b.Namespace || a.Namespace == b.Namespace && a.Name < b.Name
}

// Reasons of Explain, for the condition Matched.
const (
	ReasonMatched   = "Matched"
	ReasonNoPool    = "NoPool"
	ReasonNoScope   = "NoPoolForScope"
	ReasonNoLabels  = "NoPoolWithLabels"
	ReasonUnlabeled = "JobHasNoLabels"
)

// Explain says why no pool of those takes the job, as a reason and a message that names
// the mend: of the pools that cover the job's scope, the one that comes closest and the
// labels that it lacks.
func Explain(job workload.Job, pools []Pool) (string, string) {
	pools = slices.DeleteFunc(slices.Clone(pools), func(p Pool) bool { return p.Platform != job.Platform })
	if len(pools) == 0 {
		return ReasonNoPool, fmt.Sprintf("there is no RunnerPool of type %s in this namespace: make one", job.Platform)
	}

	if len(job.Labels) == 0 {
		return ReasonUnlabeled, "the job asks for no label, so no runner is given it: set runs-on in its workflow"
	}

	pools = slices.DeleteFunc(pools, func(p Pool) bool { return !p.Covers(scopeOf(job)) })
	if len(pools) == 0 {
		return ReasonNoScope, fmt.Sprintf("no RunnerPool in this namespace serves the repository %s: "+
			"set workload.config.github.repository or organization of a pool, or of its template", job.Repository)
	}

	slices.SortFunc(pools, func(a, b Pool) int {
		if d := len(a.missing(job.Labels)) - len(b.missing(job.Labels)); d != 0 {
			return d
		}

		return strings.Compare(a.Name, b.Name)
	})

	return ReasonNoLabels, fmt.Sprintf("no RunnerPool has all labels of the job [%s]: RunnerPool %s comes closest and lacks [%s]; "+
		"add them to workload.config.github.labels, or change runs-on in the workflow",
		strings.Join(job.Labels, ", "), pools[0].Name, strings.Join(pools[0].missing(job.Labels), ", "))
}

// Count is how many jobs ask for a pool's machines.
type Count struct {
	// Queued jobs wait for a runner.
	Queued int
	// Running jobs have one.
	Running int
}

// Demand counts the jobs by the pool that Match gives them, of the pools in the job's own
// namespace. Pools without jobs are in the map too, with zeros. Jobs that wait for
// approval, are completed or are being deleted ask for nothing.
func Demand(jobs []v1alpha1.RunnerJob, pools []Pool) map[types.NamespacedName]Count {
	counts := make(map[types.NamespacedName]Count, len(pools))
	byNamespace := map[string][]Pool{}

	for _, pool := range pools {
		counts[pool.Key()] = Count{}
		byNamespace[pool.Namespace] = append(byNamespace[pool.Namespace], pool)
	}

	for i := range jobs {
		job := &jobs[i]
		if !job.DeletionTimestamp.IsZero() || job.Spec.State != v1alpha1.JobQueued && job.Spec.State != v1alpha1.JobRunning {
			continue
		}

		pool, ok := Match(job.Spec, byNamespace[job.Namespace])
		if !ok {
			continue
		}

		count := counts[pool.Key()]
		if job.Spec.State == v1alpha1.JobQueued {
			count.Queued++
		} else {
			count.Running++
		}

		counts[pool.Key()] = count
	}

	return counts
}
