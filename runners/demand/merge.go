// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// rank gives a state's place in the only order that jobs take.
func rank(state v1alpha1.JobState) int {
	return slices.Index([]v1alpha1.JobState{
		v1alpha1.JobWaiting, v1alpha1.JobQueued, v1alpha1.JobRunning, v1alpha1.JobCompleted,
	}, state)
}

// Merge gives the job after an event, and whether anything changed. The zero old job
// takes the event as it is. An event of an earlier state is late and changes nothing; one
// of the same state fills in what is missing; one of a later state is taken, and what it
// leaves out stays as it was. Merge(Merge(a, b), b) is Merge(a, b). An event of another
// job changes nothing: GitHub gives the jobs of a re-run new ids.
func Merge(old, event workload.Job) (workload.Job, bool) {
	if old.ID == "" {
		return *event.DeepCopy(), event.ID != ""
	}

	if event.ID != old.ID || event.Platform != old.Platform || rank(event.State) < rank(old.State) {
		return *old.DeepCopy(), false
	}

	base, over := old, event
	if rank(event.State) == rank(old.State) {
		base, over = event, old
	}

	merged := overlay(base, over)
	// When the operator first heard of the job is no news of the platform's.
	merged.ReceivedAt = old.DeepCopy().ReceivedAt

	return merged, !equality.Semantic.DeepEqual(old, merged)
}

// overlay gives base with everything that over says.
func overlay(base, over workload.Job) workload.Job {
	merged := *base.DeepCopy()
	over = *over.DeepCopy()
	merged.Platform, merged.ID, merged.State = over.Platform, over.ID, over.State

	for _, text := range []struct{ to, from *string }{
		{&merged.Name, &over.Name},
		{&merged.Repository, &over.Repository},
		{&merged.Organization, &over.Organization},
		{&merged.RunID, &over.RunID},
		{&merged.Workflow, &over.Workflow},
		{&merged.URL, &over.URL},
		{&merged.Queue, &over.Queue},
		{&merged.Conclusion, &over.Conclusion},
		{&merged.RunnerName, &over.RunnerName},
	} {
		if *text.from != "" {
			*text.to = *text.from
		}
	}

	if len(over.Labels) > 0 {
		merged.Labels = over.Labels
	}

	// Labels are known once anybody has told them.
	merged.LabelsUnknown = base.LabelsUnknown && over.LabelsUnknown

	if over.Priority != 0 {
		merged.Priority = over.Priority
	}

	if over.QueuedAt != nil {
		merged.QueuedAt = over.QueuedAt
	}

	if over.StartedAt != nil {
		merged.StartedAt = over.StartedAt
	}

	if over.CompletedAt != nil {
		merged.CompletedAt = over.CompletedAt
	}

	return merged
}

const (
	maxObjectName = 253
	shortHash     = 8
)

// JobName gives the name of a job's RunnerJob: gh-ID for a job of github.com. Ids of two
// servers can be the same, so a job of another server bears a hash of its host as well;
// and so does an id that has to be rewritten to be a name.
func (p Platforms) JobName(job workload.Job) string {
	prefix := "job"
	if platform, ok := p[job.Platform]; ok {
		prefix = platform.Traits().JobPrefix
	}

	id := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}

		return '-'
	}, strings.ToLower(job.ID))
	id = strings.Trim(id, "-")

	salt := ""
	if id != job.ID {
		salt = job.ID
	}

	if link, err := url.Parse(job.URL); err == nil && link.Host != "" && !strings.EqualFold(link.Host, "github.com") {
		salt += "@" + strings.ToLower(link.Host)
	}

	name := strings.TrimSuffix(prefix+"-"+id, "-")
	if salt == "" {
		return name
	}

	sum := sha256.Sum256([]byte(salt))

	return name[:min(len(name), maxObjectName-shortHash-1)] + "-" + hex.EncodeToString(sum[:])[:shortHash]
}
