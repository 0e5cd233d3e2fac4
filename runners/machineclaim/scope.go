// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// times gives the moments of the machine's life, to read and to write.
func (s *scope) times() *v1alpha1.MachineTimes {
	if s.claim.Status.Times == nil {
		s.claim.Status.Times = &v1alpha1.MachineTimes{}
	}

	return s.claim.Status.Times
}

func (s *scope) micro() *metav1.MicroTime {
	now := metav1.NewMicroTime(s.Clock.Now())

	return &now
}

// over notes why the machine's life is over, once.
func (s *scope) over(reason string) {
	if s.times().Ended != nil {
		return
	}

	s.claim.Status.EndReason = reason
	s.times().Ended = s.micro()
	s.Metrics.ended(reason)
}

// since is the time since a moment; 0 where it has not come.
func (s *scope) since(t *metav1.MicroTime) time.Duration {
	if t == nil {
		return 0
	}

	return s.Clock.Since(t.Time)
}

func (s *scope) ref() hypervisor.MachineRef { return vmspec.Ref(s.claim) }

// eventf emits a Kubernetes event on the claim.
func (s *scope) eventf(kind, reason, action, format string, args ...any) {
	s.Recorder.Eventf(s.claim, nil, kind, reason, action, format, args...)
}
