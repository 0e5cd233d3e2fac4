// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
)

// ConditionDemandHeard says how polls and streams of the pool's jobs go. It is absent
// while nobody was asked. Machines are made all the same: webhooks may still come.
const ConditionDemandHeard = "DemandHeard"

// Hearer tells how jobs are heard of; see demand.Sources.
type Hearer interface {
	Hearing(pool types.NamespacedName) (demand.Hearing, bool)
}

// heard adds what the sources of jobs say to a step's result.
func (s *scope) heard(result step.Result) step.Result {
	if s.Heard == nil {
		return result
	}

	hearing, known := s.Heard.Hearing(client.ObjectKeyFromObject(s.pool))
	if !known {
		return result
	}

	status, reason, message := heardCondition(hearing)

	return result.Also(ConditionDemandHeard, status, reason, message)
}

func heardCondition(hearing demand.Hearing) (metav1.ConditionStatus, string, string) {
	since := " since " + hearing.Since.UTC().Format(time.RFC3339)
	if hearing.Err == nil {
		return metav1.ConditionTrue, "Heard", "the CI platform answers" + since
	}

	reason := errclass.Reason(hearing.Err, "NotHeard")
	if known, ok := errors.AsType[*workload.Error](hearing.Err); ok && known.Reason != "" {
		reason = known.Reason
	}

	return metav1.ConditionFalse, reason, "jobs are heard of by webhooks alone" + since + ": " + hearing.Err.Error()
}
