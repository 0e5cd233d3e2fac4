// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os/exec"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/kubelet"
)

// runDeployment starts the program of a Deployment, with additional environment variables.
func runDeployment(t *testing.T, env *kube.Env, namespace, name string, variables ...string) *kubelet.Pod {
	t.Helper()

	node := &kubelet.Node{T: t, Env: env, Namespace: namespace, Binary: releaseProgram(t, "hyperfleet"), EditFile: func(text string) string {
		for image, machine := range map[string]string{"x64": "amd64", "arm64": "arm64"} {
			text = strings.ReplaceAll(text, "/opt/hyperfleet/bootstrap-service-"+image, releaseFile(t, "bootstrap-service-linux-"+machine))
		}

		return text
	}}

	return node.RunDeployment(name, "KUBECONFIG", variables...)
}

// runJobs runs the Jobs of a namespace that have not ended, and sets their conditions.
func runJobs(t *testing.T, env *kube.Env, binary, namespace string) {
	t.Helper()

	var jobs batchv1.JobList
	if err := env.Client.List(t.Context(), &jobs, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}

	for i := range jobs.Items {
		job := &jobs.Items[i]
		if len(job.Status.Conditions) > 0 || job.DeletionTimestamp != nil {
			continue
		}

		spec := job.Spec.Template.Spec
		account := env.ServiceAccount(t, namespace, spec.ServiceAccountName)

		cmd := exec.CommandContext(t.Context(), binary, spec.Containers[0].Args...)
		cmd.Env = []string{"KUBECONFIG=" + env.Kubeconfig(t, account), "HOME=" + t.TempDir()}

		output, err := cmd.CombinedOutput()
		t.Logf("job %s: %v\n%s", job.Name, err, output)
		kube.EndJob(job, err != nil)

		if err := env.Client.Status().Update(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
}
