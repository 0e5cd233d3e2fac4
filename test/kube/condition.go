// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckCondition fails the test unless a condition has the status and reason, and its message contains text.
func CheckCondition(
	t testing.TB, conditions []metav1.Condition, name string, status metav1.ConditionStatus, reason, text string,
) {
	t.Helper()

	got := meta.FindStatusCondition(conditions, name)
	if got == nil || got.Status != status || got.Reason != reason || !strings.Contains(got.Message, text) {
		t.Errorf("condition %s = %+v; want %s %s: ...%s...", name, got, status, reason, text)
	}
}
