// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// ErrPayload says that a text is not what GitLab sends.
var ErrPayload = errors.New("webhook body is not a job event of GitLab")

// Statuses of a job (https://docs.gitlab.com/ci/jobs/#available-job-statuses).
const (
	statusPending   = "pending"
	statusRunning   = "running"
	statusSkipped   = "skipped"
	statusCanceled  = "canceled"
	statusCanceling = "canceling"
)

// stateOf translates a job's status. A job that is being cancelled is as good as over.
func stateOf(status string) (v1alpha1.JobState, error) {
	switch status {
	case "created", "waiting_for_resource", "waiting_for_callback", "preparing", "scheduled", "manual":
		return v1alpha1.JobWaiting, nil
	case statusPending:
		return v1alpha1.JobQueued, nil
	case statusRunning:
		return v1alpha1.JobRunning, nil
	case "success", "failed", statusCanceled, statusCanceling, statusSkipped:
		return v1alpha1.JobCompleted, nil
	default:
		return "", fmt.Errorf("%w: unknown status %q of the job", ErrPayload, workload.Cut(status, workload.MaxConclusion))
	}
}

// conclusionOf gives the last word on a job that is over.
func conclusionOf(status string) string {
	if status == statusCanceling {
		return statusCanceled
	}

	return status
}

func checkLabels(labels []string) error {
	if len(labels) > workload.MaxLabels {
		return fmt.Errorf("%w: the job has %d tags, at most %d are possible", ErrPayload, len(labels), workload.MaxLabels)
	}

	for _, label := range labels {
		if utf8.RuneCountInString(label) > workload.MaxLabel {
			return fmt.Errorf("%w: a tag of the job is longer than %d characters", ErrPayload, workload.MaxLabel)
		}
	}

	return nil
}

// isProject tells whether a text is the full path of a project: namespace/name.
func isProject(path string) bool {
	namespace, name := split(path)

	return namespace != "" && name != "" && !strings.HasPrefix(path, "/") && utf8.RuneCountInString(path) <= workload.MaxRepository
}

// split takes the full path of a project apart: its namespace and its name.
func split(path string) (namespace, name string) {
	at := strings.LastIndex(path, "/")
	if at < 0 {
		return "", path
	}

	return path[:at], path[at+1:]
}

// projectIn gives the path of a project by the URL of its home page or its repository.
func projectIn(link string) string {
	parsed, err := url.Parse(link)
	if err != nil {
		return ""
	}

	return strings.TrimSuffix(strings.Trim(parsed.Path, "/"), ".git")
}

// hostIn gives the host of a URL, or "".
func hostIn(link string) string {
	parsed, err := url.Parse(link)
	if err != nil {
		return ""
	}

	return strings.ToLower(parsed.Host)
}

// queuedAt tells when a job that has been started came into the queue. Before that GitLab
// tells only when it was made, which is earlier for the jobs of later stages.
func queuedAt(created, started time.Time, queued float64) *metav1.Time {
	if started.IsZero() || queued <= 0 || queued > (365*24*time.Hour).Seconds() {
		return metaTime(created)
	}

	return metaTime(started.Add(-time.Duration(queued * float64(time.Second))).Truncate(time.Second))
}

// metaTime gives a time that a RunnerJob can hold, or nil.
func metaTime(at time.Time) *metav1.Time {
	if at.IsZero() || at.Year() < 1 || at.Year() > 9999 {
		return nil
	}

	return &metav1.Time{Time: at.UTC()}
}
