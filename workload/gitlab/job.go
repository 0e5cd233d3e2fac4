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

// ErrPayload means that data is not what GitLab sends.
var ErrPayload = errors.New("webhook body is not a job event of GitLab")

// Statuses of a job (https://docs.gitlab.com/ci/jobs/#available-job-statuses).
const (
	statusPending   = "pending"
	statusRunning   = "running"
	statusSkipped   = "skipped"
	statusCanceled  = "canceled"
	statusCanceling = "canceling"
)

// convertState converts a job's status. A job that is being canceled counts as completed.
func convertState(status string) (v1alpha1.JobState, error) {
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
		return "", fmt.Errorf("%w: the job's status %q is unknown", ErrPayload, workload.Truncate(status, workload.MaxConclusionLength))
	}
}

// convertConclusion returns the conclusion of a completed job.
func convertConclusion(status string) string {
	if status == statusCanceling {
		return statusCanceled
	}

	return status
}

func validateLabels(labels []string) error {
	if len(labels) > workload.MaxLabels {
		return fmt.Errorf("%w: the job has %d tags, which is more than %d", ErrPayload, len(labels), workload.MaxLabels)
	}

	for _, label := range labels {
		if utf8.RuneCountInString(label) > workload.MaxLabelLength {
			return fmt.Errorf("%w: a tag of the job is longer than %d characters", ErrPayload, workload.MaxLabelLength)
		}
	}

	return nil
}

// isProjectPath reports whether a text is the full path of a project: namespace/name.
func isProjectPath(path string) bool {
	namespace, name := splitPath(path)

	return namespace != "" && name != "" && !strings.HasPrefix(path, "/") &&
		utf8.RuneCountInString(path) <= workload.MaxRepositoryLength
}

// splitPath splits the full path of a project into its namespace and its name.
func splitPath(path string) (namespace, name string) {
	i := strings.LastIndex(path, "/")
	if i < 0 {
		return "", path
	}

	return path[:i], path[i+1:]
}

// parseProjectPath returns a project's path from the URL of its home page or its repository, or ""
// if the URL is invalid.
func parseProjectPath(link string) string {
	parsed, err := url.Parse(link)
	if err != nil {
		return ""
	}

	return strings.TrimSuffix(strings.Trim(parsed.Path, "/"), ".git")
}

// parseHost returns the host of a URL in lower case, or "" if the URL is invalid.
func parseHost(link string) string {
	parsed, err := url.Parse(link)
	if err != nil {
		return ""
	}

	return strings.ToLower(parsed.Host)
}

// computeQueuedAt returns the time at which a job entered the queue. If the job has not started,
// GitLab only returns the time of its creation, which is earlier than the queue time for jobs of
// later stages.
func computeQueuedAt(created, started time.Time, queuedSeconds float64) *metav1.Time {
	if started.IsZero() || queuedSeconds <= 0 || queuedSeconds > (365*24*time.Hour).Seconds() {
		return toMetaTime(created)
	}

	return toMetaTime(started.Add(-time.Duration(queuedSeconds * float64(time.Second))).Truncate(time.Second))
}

// toMetaTime returns a time that a RunnerJob can hold, or nil.
func toMetaTime(t time.Time) *metav1.Time {
	if t.IsZero() || t.Year() < 1 || t.Year() > 9999 {
		return nil
	}

	return &metav1.Time{Time: t.UTC()}
}
