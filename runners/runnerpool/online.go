// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// onlineTimes holds, by the UIDs of their claims, when this process first saw that the runners of machines had jobs. Until
// the claim's status has the time at which the runner was online, this time replaces it. If the job is completed within
// seconds, the status never has it (docs/adr/0067). The zero value is ready to use.
type onlineTimes struct {
	times map[types.UID]metav1.MicroTime
}

// addTo adds the times to the claims whose status lacks them. It changes the claims, and nothing that they point to. byRunner
// holds the state of the job of each runner.
func (o *onlineTimes) addTo(claims []v1alpha1.MachineClaim, byRunner map[string]v1alpha1.JobState, now time.Time) {
	known := map[types.UID]metav1.MicroTime{}

	for i := range claims {
		status := &claims[i].Status
		if status.BootstrapInfo == nil || status.Times != nil && status.Times.Ready != nil {
			continue
		}

		if state := byRunner[status.BootstrapInfo.RunnerName]; state != v1alpha1.JobRunning && state != v1alpha1.JobCompleted {
			continue
		}

		ready, ok := o.times[claims[i].UID]
		if !ok {
			ready = metav1.NewMicroTime(now)
		}

		known[claims[i].UID] = ready

		times := v1alpha1.MachineTimes{}
		if status.Times != nil {
			times = *status.Times
		}

		times.Ready = &ready
		status.Times = &times
	}

	o.times = known
}
