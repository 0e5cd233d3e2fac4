// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// Marks are annotations of a host that repeat parts of its status. A backup without statuses contains them. An
// empty value removes an annotation.
type Marks map[string]string

// markValue returns the value of a mark, or an empty string if the mark was written for a host with another name,
// because a person may have copied the annotations.
func markValue(host Object, annotation string) string {
	name, value, _ := strings.Cut(host.GetAnnotations()[annotation], " ")
	if name != host.GetName() {
		return ""
	}

	return value
}

// newCommonMarks returns the marks that hosts of every kind have. The function Marks of a Kind returns the others.
// Each value begins with the host's name, which markValue checks.
func newCommonMarks(host Object) Marks {
	out := Marks{
		v1alpha1.AnnotationSSHHostKey:   "",
		v1alpha1.AnnotationBootstrapped: host.GetName() + " " + strconv.FormatBool(host.Host().Bootstrapped),
	}

	if key := host.Host().SSHHostKey; key != "" {
		out[v1alpha1.AnnotationSSHHostKey] = host.GetName() + " " + key
	}

	return out
}

// isStatusLost returns true if the status of a host was lost, for example because the host was restored from a
// backup without its status. It recognizes this by marks or a finalizer without any condition.
func isStatusLost(host Object, marks Marks) bool {
	return len(*host.StatusConditions()) == 0 &&
		(marks.isAnyOn(host) || controllerutil.ContainsFinalizer(host, v1alpha1.FinalizerHost))
}

// isAnyOn returns true if the host has at least one of the annotations.
func (m Marks) isAnyOn(host Object) bool {
	for annotation := range m {
		if host.GetAnnotations()[annotation] != "" {
			return true
		}
	}

	return false
}

// marksOf returns all marks that a host should have.
func (r *Reconciler) marksOf(host Object) Marks {
	out := newCommonMarks(host)
	maps.Copy(out, r.Kind.Marks(host))

	return out
}

// recordMarks writes the marks of a host to its annotations. If the status was lost, it returns true, and
// does not change the marks.
func (r *Reconciler) recordMarks(ctx context.Context, host Object) (isLost bool, err error) {
	marks := r.marksOf(host)
	if isStatusLost(host, marks) {
		return true, nil
	}

	before, _ := host.DeepCopyObject().(client.Object)
	annotations, hasChanged := maps.Clone(host.GetAnnotations()), false

	if annotations == nil {
		annotations = map[string]string{}
	}

	for annotation, value := range marks {
		hasChanged = hasChanged || annotations[annotation] != value

		if value == "" {
			delete(annotations, annotation)
		} else {
			annotations[annotation] = value
		}
	}

	if !hasChanged || !host.GetDeletionTimestamp().IsZero() {
		return false, nil
	}

	host.SetAnnotations(annotations)

	if err := r.Client.Patch(ctx, host, client.MergeFrom(before)); err != nil {
		return false, fmt.Errorf("mark %s %s: %w", r.Kind.Name(), client.ObjectKeyFromObject(host), err)
	}

	return false, nil
}

// readBackUnmarked sets the status of a host without marks, which comes from a backup of a version that wrote
// none. The host counts as bootstrapped, because a first boot would stop its machines. Its key is unknown
// unless the spec has it.
func (s *scope) readBackUnmarked() {
	s.status.Bootstrapped = true

	if s.Kind.HostKeys(s.obj).IsEmpty() {
		s.status.FailureReason = v1alpha1.FailureHostKeyLost
		s.status.FailureMessage = "the status of the host was lost, and the object has no annotation with the key of the host"
	}
}

// readBack restores the status of a host whose status was lost from its marks, so that the host is not trusted,
// booted or ordered a second time. The configuration on the host is unknown, so it is pushed again in the order
// of the fleet's rollout.
func readBack(_ context.Context, s *scope) step.Result {
	if !s.isStatusLost {
		return step.Done()
	}

	s.status.SSHHostKey = markValue(s.obj, v1alpha1.AnnotationSSHHostKey)
	s.status.Bootstrapped = markValue(s.obj, v1alpha1.AnnotationBootstrapped) == "true"

	if !s.marksOf(s.obj).isAnyOn(s.obj) {
		s.readBackUnmarked()
	}

	s.Kind.ReadBack(s.obj)

	if s.status.Bootstrapped && needsCredential(s) && !s.obj.GetDeletionTimestamp().IsZero() {
		// The validity is unknown. The credential was issued before now, so its lifetime ends before this Until.
		now := s.Clock.Now()
		s.status.NodeCredential = &v1alpha1.HostNodeCredential{
			From: metav1.NewTime(now), Until: metav1.NewTime(now.Add(s.fleet.Spec.NodeCredentials.Lifetime.Duration)),
		}
	}

	s.Recorder.Eventf(s.obj, nil, corev1.EventTypeNormal, "StatusReadBack", "Check",
		"the status was empty: its facts are read back from the annotations and from the host")

	return step.Done()
}
