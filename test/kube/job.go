// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EndJob sets the status of a Job that has completed or failed, as the job controller does: the criteria
// condition comes before the final condition (Kubernetes, Job status validation). The caller must write the
// status.
func EndJob(job *batchv1.Job, fail bool) {
	now := metav1.Now()
	job.Status.StartTime = &now

	kinds := []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete}
	if fail {
		kinds = []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed}
	} else {
		job.Status.CompletionTime, job.Status.Succeeded = &now, 1
	}

	for _, kind := range kinds {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{
			Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now, LastProbeTime: now, Reason: "Simulated",
		})
	}
}
