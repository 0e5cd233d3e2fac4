// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/kube"
)

// foreign are the kinds of the Prometheus operator, whose names are all that counts here.
const foreign = `
for kind in ServiceMonitor PrometheusRule; do
plural=$(echo ${kind}s | tr A-Z a-z)
kubectl apply -f - <<END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: $plural.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: $kind, plural: $plural}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
END
kubectl wait crd/$plural.monitoring.coreos.com --for=condition=Established --timeout=1m
done
kubectl create namespace hyperfleet-system
kubectl create namespace monitoring
`

// What guides have readers apply from a checkout, a checkout has, and an API server takes.
func TestPagesApply(t *testing.T) {
	t.Parallel()

	u := newUser(t, kube.Start(t), "")

	checkout, err := filepath.Abs(root + "deploy")
	u.must(err)
	u.must(os.Symlink(checkout, filepath.Join(u.dir, "deploy")))
	u.types(foreign)

	for _, page := range []string{"guides/kubevirt-runners", "guides/monitoring"} {
		u.types(blocks(t, root+"docs/"+page+".md")[0])
	}

	u.types(`
kubectl get clusterrole hyperfleet-metrics-reader
kubectl get -n hyperfleet-system servicemonitors,prometheusrules,configmaps -o name | grep configmap/hyperfleet-pool
kubectl get -n hyperfleet-machines roles,rolebindings -o name
`)
}
