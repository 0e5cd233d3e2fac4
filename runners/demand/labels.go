// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// operatorLabelPrefix begins the labels with which operators recognize their runners (vmspec.OperatorLabel).
const operatorLabelPrefix = "hf-op-"

// listMissing returns the labels of the job that runners with the given labels lack. The platform compares
// the labels.
func (p Pool) listMissing(labels []string, job workload.Job) []string {
	runner := p.Runner
	runner.Labels = labels

	return p.Rules.MatchJob(runner, job).MissingLabels
}

// hasSharedLabel reports whether the job requests a label of the pool that not every runner has.
func (p Pool) hasSharedLabel(job workload.Job) bool {
	return len(p.listMissing(p.Runner.Labels, job)) < len(p.listMissing(p.Runner.DefaultLabels, job))
}

// listOwnLabels returns the labels of the pool without those that every runner has.
func (p Pool) listOwnLabels() []string {
	return slices.DeleteFunc(slices.Clone(p.Runner.Labels), func(label string) bool {
		return slices.Contains(p.Runner.DefaultLabels, label)
	})
}

// listUnrequested returns the pool's own labels that the job does not request.
func (p Pool) listUnrequested(job workload.Job) []string {
	missing := len(p.listMissing(p.Runner.Labels, job))

	return slices.DeleteFunc(p.listOwnLabels(), func(label string) bool {
		without := slices.DeleteFunc(slices.Clone(p.Runner.Labels), func(other string) bool { return other == label })

		return len(p.listMissing(without, job)) > missing
	})
}

// applyLabelMatch refuses a job that matches if the pool's labelMatch is Exact and the job does not request all of the
// pool's own labels. It returns the fit of any other job unchanged.
func (p Pool) applyLabelMatch(fit workload.JobMatch, job workload.Job) workload.JobMatch {
	isUntagged := len(job.Labels) == 0 && p.Runner.CanRunUntagged
	if p.LabelMatch != v1alpha1.LabelMatchExact || !fit.Matched || isUntagged {
		return fit
	}

	if labels := p.listUnrequested(job); len(labels) > 0 {
		fit.Matched = false
		fit.Message = fmt.Sprintf("the job does not request [%s] of RunnerPool %s, whose labelMatch is Exact: "+
			"request these labels, or set labelMatch to All", strings.Join(labels, ", "), p.Name)
	}

	return fit
}

// addMissingLabels adds to the size the labels of the job that the pool lacks, if labelMatch is Any and the
// job requests a label of the pool. It returns the reason if no runner can have them.
func (p Pool) addMissingLabels(size *Size, job workload.Job) string {
	if p.LabelMatch != v1alpha1.LabelMatchAny || p.Rules == nil || len(job.Labels) == 0 {
		return ""
	}

	if !p.hasSharedLabel(job) {
		return fmt.Sprintf("the job requests none of the labels [%s] of RunnerPool %s, whose labelMatch is Any: request one of them",
			strings.Join(p.listOwnLabels(), ", "), p.Name)
	}

	for _, label := range p.listMissing(slices.Concat(p.Runner.Labels, size.Labels), job) {
		if !isRegistrable(label) {
			return fmt.Sprintf("the job's label %q cannot be added to a runner of RunnerPool %s: remove it from the job", label, p.Name)
		}

		if !p.hasLabel(size.Labels, label, job) {
			size.Labels = append(size.Labels, label)
		}
	}

	const maxLabels = workload.MaxLabels - 1 // the operator adds a label of its own
	if len(p.Runner.Labels)+len(size.Labels) > maxLabels {
		return fmt.Sprintf("the job's runner would have more than %d labels: remove labels from the job", maxLabels)
	}

	return ""
}

// hasLabel reports whether the labels contain a label of the job. The platform compares them, because two spellings can be
// the same label.
func (p Pool) hasLabel(labels []string, label string, job workload.Job) bool {
	job.Labels = []string{label}

	return len(p.listMissing(labels, job)) == 0
}

// isRegistrable reports whether a runner of each platform can have a label of a job, which is untrusted. Runner
// programs separate labels by commas, and those of Gitea and Forgejo separate a label from its image by a colon.
func isRegistrable(label string) bool {
	return !strings.ContainsAny(label, ",:") && !strings.ContainsFunc(label, unicode.IsControl) &&
		label == strings.TrimSpace(label) && !strings.HasPrefix(strings.ToLower(label), operatorLabelPrefix)
}
