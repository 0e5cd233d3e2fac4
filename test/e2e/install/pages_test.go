// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/kubelet"
)

// TestPagesApply runs the commands of guides that need only an API server with the CRDs: all blocks that are
// marked as run by this test.
func TestPagesApply(t *testing.T) {
	t.Parallel()

	env := kube.Start(t)
	u := newUser(t, env, "")

	checkout, err := filepath.Abs(root + "deploy")
	u.must(err)
	u.must(os.Symlink(checkout, filepath.Join(u.dir, "deploy")))

	manifests, err := os.ReadFile(releaseFile(t, "hyperfleet.yaml"))
	u.must(err)
	u.writeFile("hyperfleet.yaml", string(manifests))

	for _, file := range []string{"KEY.pem", "TOKEN_FILE"} {
		u.writeFile(file, "a secret")
	}

	u.runCommands(kubelet.MonitorCRDs + `
kubectl create namespace hyperfleet-system
kubectl create namespace monitoring
kubectl create namespace ci
kubectl config set-context --current --namespace ci
kubectl apply --server-side -k deploy/crds
kubectl wait crd --all --for=condition=Established --timeout=1m
`)

	for _, page := range []string{
		"guides/kubevirt-runners", "guides/monitoring", "guides/bridge", "guides/buildkite", "guides/dns", "guides/forgejo", "guides/github",
		"guides/gitlab", "guides/hosts", "guides/kubevirt", "guides/mac-hosts", "guides/proxmox-permissions", "guides/scale-sets", "guides/tpm",
		"operate/install",
	} {
		commands := readBlocks(t, root+"docs/"+page+".md", "run: TestPagesApply")
		if len(commands) == 0 {
			t.Errorf("docs/%s.md has no commands for this test", page)
		}

		for _, block := range commands {
			u.runCommands(block)
		}
	}

	u.runCommands(`
kubectl get clusterrole hyperfleet-metrics-reader
kubectl get -n hyperfleet-system servicemonitors,podmonitors,prometheusrules,configmaps -o name | grep configmap/hyperfleet-pool
kubectl get -n hyperfleet-machines roles,rolebindings -o name
kubectl get -n hyperfleet-system secret github-app -o jsonpath='{.metadata.annotations}' | grep hyperfleet.io/allowed-namespaces
kubectl get -n hyperfleet-system deployment hyperfleet-runners -o yaml | grep registry.example.com/hyperfleet:
`)
}
