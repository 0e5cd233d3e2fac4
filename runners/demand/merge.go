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

// rank returns the position of a state in the order in which a job goes through the states.
func rank(state v1alpha1.JobState) int {
	return slices.Index([]v1alpha1.JobState{
		v1alpha1.JobWaiting, v1alpha1.JobQueued, v1alpha1.JobRunning, v1alpha1.JobCompleted,
	}, state)
}

// Merge returns the job after an event, and whether anything changed.
//
// If old is zero, the result is the event. An event with an earlier state is late and changes
// nothing. An event with the same state fills in missing fields. An event with a later state
// overwrites the fields that it has and keeps the others. An event of another job changes nothing. For
// another job with the same ID, see Ledger.isRunAgain. Merge is idempotent: Merge(Merge(a, b), b) equals
// Merge(a, b).
func Merge(old, event workload.Job) (merged workload.Job, hasChanged bool) {
	if old.ID == "" {
		return *event.DeepCopy(), event.ID != ""
	}

	if event.ID != old.ID || event.Platform != old.Platform || rank(event.State) < rank(old.State) {
		return *old.DeepCopy(), false
	}

	base, update := old, event
	if rank(event.State) == rank(old.State) {
		base, update = event, old
	}

	merged = overlay(base, update)
	// ReceivedAt is the operator's time of the first event; the platform does not change it.
	merged.ReceivedAt = old.DeepCopy().ReceivedAt

	return merged, !equality.Semantic.DeepEqual(old, merged)
}

// overlay returns base with all non-empty fields of update.
func overlay(base, update workload.Job) workload.Job {
	merged := *base.DeepCopy()
	update = *update.DeepCopy()
	merged.Platform, merged.ID, merged.State = update.Platform, update.ID, update.State

	for _, text := range []struct{ to, from *string }{
		{&merged.Name, &update.Name},
		{&merged.Repository, &update.Repository},
		{&merged.Organization, &update.Organization},
		{&merged.Enterprise, &update.Enterprise},
		{&merged.RunID, &update.RunID},
		{&merged.Workflow, &update.Workflow},
		{&merged.URL, &update.URL},
		{&merged.Queue, &update.Queue},
		{&merged.Conclusion, &update.Conclusion},
		{&merged.RunnerName, &update.RunnerName},
	} {
		if *text.from != "" {
			*text.to = *text.from
		}
	}

	if len(update.Labels) > 0 {
		merged.Labels = update.Labels
	}

	// Labels are known as soon as one event has them.
	merged.LabelsUnknown = base.LabelsUnknown && update.LabelsUnknown

	if update.Priority != 0 {
		merged.Priority = update.Priority
	}

	if update.QueuedAt != nil {
		merged.QueuedAt = update.QueuedAt
	}

	if update.StartedAt != nil {
		merged.StartedAt = update.StartedAt
	}

	if update.CompletedAt != nil {
		merged.CompletedAt = update.CompletedAt
	}

	return merged
}

const (
	maxObjectName = 253
	shortHash     = 8
)

// JobName returns the name of a job's RunnerJob, such as gh-ID for a job of github.com. Two servers
// may use the same IDs, so the name of a job of another server ends with a hash of the server's
// host. A name also ends with a hash if the ID contains characters that are not allowed in a name.
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

	return addHash(name, salt)
}

// addHash returns the name with a hash of the salt at its end.
func addHash(name, salt string) string {
	sum := sha256.Sum256([]byte(salt))

	return name[:min(len(name), maxObjectName-shortHash-1)] + "-" + hex.EncodeToString(sum[:])[:shortHash]
}
