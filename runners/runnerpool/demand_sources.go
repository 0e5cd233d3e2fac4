// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
)

// SourceStatuses tells how jobs are heard of; see demand.Sources.
type SourceStatuses interface {
	SourceStatus(pool types.NamespacedName) (demand.SourceStatus, bool)
}

// withSources adds what the sources of jobs say to a step's result.
func (s *scope) withSources(result step.Result) step.Result {
	if s.Sources == nil {
		return result
	}

	source, known := s.Sources.SourceStatus(client.ObjectKeyFromObject(s.pool))
	if !known {
		return result
	}

	status, reason, message := sourceCondition(source, s.pool.Spec.Workload.Webhook != nil)

	return result.Also(v1alpha1.ConditionDemandSourcesReady, status, reason, message)
}

func sourceCondition(status demand.SourceStatus, webhooks bool) (metav1.ConditionStatus, string, string) {
	since := " since " + status.Since.UTC().Format(time.RFC3339)

	heard := "no job is heard of"
	if webhooks {
		heard = "jobs are heard of by webhooks alone"
	}

	switch {
	case status.NotPolled != "":
		return metav1.ConditionTrue, "NotPolled", heard + since + ": " + status.NotPolled
	case status.Err == nil:
		return metav1.ConditionTrue, "SourcesReady", "the CI platform answers" + since
	}

	reason := errclass.Reason(status.Err, "SourceFailed")
	if known, ok := errors.AsType[*workload.Error](status.Err); ok && known.Reason != "" {
		reason = known.Reason
	}

	return metav1.ConditionFalse, reason, heard + since + ": " + status.Err.Error()
}
