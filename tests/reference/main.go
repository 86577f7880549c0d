// Decide runs Karpenter's own scheduler on a file of pods and NodePools and a file of instance types, as `karpenter plan` does,
// and prints what it decides and how long that takes. It only calls the public packages of the module.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	providerfake "sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/logging"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	requirement "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/test"
)

type offeringFile struct {
	Price        float64                          `json:"price"`
	Available    *bool                            `json:"available"`
	Requirements []corev1.NodeSelectorRequirement `json:"requirements"`
}

type typeFile struct {
	Name             string              `json:"name"`
	Architecture     string              `json:"architecture"`
	OperatingSystems []string            `json:"operatingSystems"`
	Resources        corev1.ResourceList `json:"resources"`
	Overhead         corev1.ResourceList `json:"overhead"`
	Labels           map[string]string   `json:"labels"`
	Offerings        []offeringFile      `json:"offerings"`
}

type decision struct {
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpuSeconds"`
	PerHour    float64 `json:"perHour"`
	NodeClaims int     `json:"nodeClaims"`
	Left       int     `json:"left"`
}

func main() {
	log.SetLogger(logging.NopLogger)
	pods, nodePools := readObjects(os.Args[1])
	types := readTypes(os.Args[2])
	ctx := options.ToContext(injection.WithControllerName(context.Background(), "provisioner"), test.Options())
	began, cpu := time.Now(), cpuSeconds()
	results := decide(ctx, pods, nodePools, types)
	made := decision{Seconds: time.Since(began).Seconds(), CPUSeconds: cpuSeconds() - cpu}
	made.NodeClaims, made.Left = len(results.NewNodeClaims), len(results.PodErrors)
	for _, claim := range results.NewNodeClaims {
		made.PerHour += cheapest(claim.InstanceTypeOptions, claim.Requirements)
	}
	must(json.NewEncoder(os.Stdout).Encode(made))
}

func decide(ctx context.Context, pods []*corev1.Pod, pools []*v1.NodePool, types []*cloudprovider.InstanceType) scheduling.Results {
	byPool := map[string][]*cloudprovider.InstanceType{}
	for _, pool := range pools {
		byPool[pool.Name] = types
	}
	provider := providerfake.NewCloudProvider()
	provider.InstanceTypes = types
	objects, now := clientfake.NewFakeClient(), &clock.RealClock{}
	cluster := state.NewCluster(now, objects, provider)
	workers := scheduling.NumConcurrentReconciles(5)
	topology, err := scheduling.NewTopology(ctx, objects, cluster, nil, pools, byPool, pods, workers)
	must(err)
	recorder := events.NewRecorder(&record.FakeRecorder{})
	scheduler := scheduling.NewScheduler(ctx, objects, pools, cluster, nil, topology, byPool, nil, recorder, now, nil, nil, workers)
	results, err := scheduler.Solve(ctx, pods)
	must(err)
	return results
}

// cheapest is the lowest price of any type in any offering that a NodeClaim accepts.
func cheapest(types []*cloudprovider.InstanceType, accepted requirement.Requirements) float64 {
	lowest := -1.0
	for _, each := range types {
		if offerings := each.Offerings.Available().Compatible(accepted); len(offerings) > 0 {
			if price := offerings.Cheapest().Price; lowest < 0 || price < lowest {
				lowest = price
			}
		}
	}
	return max(lowest, 0)
}

func readObjects(name string) (pods []*corev1.Pod, pools []*v1.NodePool) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	read(name, &list)
	for _, item := range list.Items {
		var kind struct {
			Kind string `json:"kind"`
		}
		must(json.Unmarshal(item, &kind))
		switch kind.Kind {
		case "Pod":
			pod := &corev1.Pod{}
			must(json.Unmarshal(item, pod))
			pod.UID = uuid.NewUUID()
			pods = append(pods, pod)
		case "NodePool":
			pool := &v1.NodePool{}
			must(json.Unmarshal(item, pool))
			pool.UID = uuid.NewUUID()
			pools = append(pools, pool)
		}
	}
	return pods, pools
}

func readTypes(name string) (types []*cloudprovider.InstanceType) {
	var files []typeFile
	read(name, &files)
	for _, file := range files {
		types = append(types, instanceType(file))
	}
	return types
}

func instanceType(file typeFile) *cloudprovider.InstanceType {
	zones, kinds := map[string]bool{}, map[string]bool{}
	var offerings cloudprovider.Offerings
	for _, each := range file.Offerings {
		accepts := requirement.NewNodeSelectorRequirements(each.Requirements...)
		zones[accepts.Get(corev1.LabelTopologyZone).Any()] = true
		kinds[accepts.Get(v1.CapacityTypeLabelKey).Any()] = true
		isAvailable := each.Available == nil || *each.Available
		offerings = append(offerings, &cloudprovider.Offering{Requirements: accepts, Price: each.Price, Available: isAvailable})
	}
	requirements := requirement.NewRequirements(
		requirement.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, file.Name),
		requirement.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, file.Architecture),
		requirement.NewRequirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, file.OperatingSystems...),
		requirement.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, keys(zones)...),
		requirement.NewRequirement(v1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, keys(kinds)...),
	)
	for key, value := range file.Labels {
		v1.WellKnownLabels.Insert(key)
		requirements.Add(requirement.NewRequirement(key, corev1.NodeSelectorOpIn, value))
	}
	if _, ok := file.Resources[corev1.ResourcePods]; !ok {
		file.Resources[corev1.ResourcePods] = resource.MustParse("110")
	}
	return &cloudprovider.InstanceType{
		Name:         file.Name,
		Requirements: requirements,
		Offerings:    offerings,
		Capacity:     file.Resources,
		Overhead:     &cloudprovider.InstanceTypeOverhead{KubeReserved: file.Overhead},
	}
}

func keys(values map[string]bool) (names []string) {
	for name := range values {
		names = append(names, name)
	}
	return names
}

func read(name string, into any) {
	text, err := os.ReadFile(name)
	must(err)
	must(json.Unmarshal(text, into))
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
