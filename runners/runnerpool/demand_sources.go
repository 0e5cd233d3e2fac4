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

// SourceStatuses returns the status of the job sources of a pool; see demand.Sources.
type SourceStatuses interface {
	SourceStatus(pool types.NamespacedName) (demand.SourceStatus, bool)
}

// addSourceCondition adds the condition DemandSourcesReady to a step's result. It adds nothing if
// the status of the sources is unknown.
func (s *scope) addSourceCondition(result step.Result) step.Result {
	if s.Sources == nil {
		return result
	}

	source, known := s.Sources.SourceStatus(client.ObjectKeyFromObject(s.pool))
	if !known {
		return result
	}

	status, reason, message := describeSources(source, s.pool.Spec.Workload.Webhook != nil)

	return result.WithCondition(v1alpha1.ConditionDemandSourcesReady, status, reason, message)
}

func describeSources(
	status demand.SourceStatus, hasWebhooks bool,
) (conditionStatus metav1.ConditionStatus, reason, message string) {
	since := " since " + status.Since.UTC().Format(time.RFC3339)

	deliveries := "the operator receives no jobs"
	if hasWebhooks {
		deliveries = "the operator receives jobs by webhooks only"
	}

	switch {
	case status.NotPolled != "":
		return metav1.ConditionTrue, "NotPolled", deliveries + since + ": " + status.NotPolled
	case status.Err == nil:
		return metav1.ConditionTrue, "SourcesReady", "the CI platform is reachable" + since
	}

	reason = errclass.ReasonOf(status.Err, "SourceFailed")
	if known, ok := errors.AsType[*workload.Error](status.Err); ok && known.Reason != "" {
		reason = known.Reason
	}

	return metav1.ConditionFalse, reason, deliveries + since + ": " + status.Err.Error()
}
