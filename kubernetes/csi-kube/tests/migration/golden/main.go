// Translates the objects below with Kubernetes' own library, and prints objects and results as JSON.
//
//	go run . > ../vectors.json
package main

import (
	"encoding/json"
	"os"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

// A vector is one translation: its input, and the result or the fact that it is refused.
type vector struct {
	Plugin    string `json:"plugin,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Input     any    `json:"input"`
	Node      string `json:"node,omitempty"`
	Output    any    `json:"output,omitempty"`
	Refused   bool   `json:"refused,omitempty"`
}

type vectors struct {
	ToCSI    []vector `json:"toCsi"`
	ToInTree []vector `json:"toInTree"`
	Inline   []vector `json:"inline"`
	Classes  []vector `json:"classes"`
	Handles  []vector `json:"handles"`
}

const (
	zone      = v1.LabelTopologyZone
	region    = v1.LabelTopologyRegion
	oldZone   = v1.LabelFailureDomainBetaZone
	oldRegion = v1.LabelFailureDomainBetaRegion
)

func ptr[T any](value T) *T { return &value }

// A change to a volume.
type change func(*v1.PersistentVolume)

func labels(pairs ...string) change {
	return func(pv *v1.PersistentVolume) {
		pv.Labels = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			pv.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func annotations(pairs ...string) change {
	return func(pv *v1.PersistentVolume) {
		pv.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			pv.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

// One term for each group; each group is a key and its values.
func affinity(groups ...[][]string) change {
	return func(pv *v1.PersistentVolume) {
		selector := &v1.NodeSelector{}
		for _, group := range groups {
			term := v1.NodeSelectorTerm{}
			for _, r := range group {
				term.MatchExpressions = append(term.MatchExpressions,
					v1.NodeSelectorRequirement{Key: r[0], Operator: v1.NodeSelectorOpIn, Values: r[1:]})
			}
			selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
		}
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: selector}
	}
}

func modes(all ...v1.PersistentVolumeAccessMode) change {
	return func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = all }
}

func claim(namespace string) change {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: namespace, Name: "claim"}
	}
}

func volume(source v1.PersistentVolumeSource, changes ...change) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.PersistentVolumeSource = source
	for _, change := range changes {
		change(pv)
	}
	return pv
}

func ebs(id string, partition int32) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{
		VolumeID: id, FSType: "ext4", Partition: partition, ReadOnly: partition == 0}}
}

func gce(partition int32) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{
		PDName: "disk-1", FSType: "xfs", Partition: partition}}
}

func cinder() v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{Cinder: &v1.CinderPersistentVolumeSource{VolumeID: "cinder-1", FSType: "ext4"}}
}

func vsphere(policy string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{
		VolumePath: "[ds] kubevols/a.vmdk", FSType: "ext4", StoragePolicyName: policy}}
}

func azureFile(secret string, namespace *string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{AzureFile: &v1.AzureFilePersistentVolumeSource{
		SecretName: secret, ShareName: "share", ReadOnly: true, SecretNamespace: namespace}}
}

const uri = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/disk-1"

func azureDisk(kind *v1.AzureDataDiskKind, caching *v1.AzureDataDiskCachingMode, fs *string, ro *bool) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{
		DiskName: "disk-1", DataDiskURI: uri, Kind: kind, CachingMode: caching, FSType: fs, ReadOnly: ro}}
}

func csi(driver, handle string, attributes map[string]string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
		Driver: driver, VolumeHandle: handle, FSType: "ext4", VolumeAttributes: attributes}}
}

func class(plugin string, parameters map[string]string, topologies ...v1.TopologySelectorTerm) vector {
	return vector{Plugin: plugin, Input: &storage.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "class"}, Provisioner: plugin,
		Parameters: parameters, AllowedTopologies: topologies}}
}

func allowed(key string, values ...string) v1.TopologySelectorTerm {
	return v1.TopologySelectorTerm{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: key, Values: values}}}
}

func main() {
	translator := translation.New()
	logger := klog.Background()
	result := vectors{}

	for _, pv := range []*v1.PersistentVolume{
		volume(ebs("vol-1", 0)),
		volume(ebs("aws://us-east-1a/vol-1", 2), labels(zone, "us-east-1a", region, "us-east-1")),
		volume(ebs("aws:///vol-1", 1), labels(oldZone, "us-east-1a")),
		volume(ebs("aws://us-east-1a/disk-1", 1)),
		volume(ebs("vol-1", 1), affinity([][]string{{zone, "us-east-1a"}, {region, "us-east-1"}})),
		volume(ebs("vol-1", 1), affinity([][]string{{oldZone, "us-east-1a"}, {oldRegion, "us-east-1"}}, [][]string{{"other", "x"}})),
		volume(ebs("vol-1", 1), labels(zone, " "), affinity([][]string{{"other", "x"}})),
		volume(gce(0), labels(zone, "us-central1-b"), modes(v1.ReadWriteMany)),
		volume(gce(3), labels(oldZone, "us-central1-b__us-central1-c"), modes(v1.ReadOnlyMany)),
		volume(gce(0), labels(zone, "us-central1-b__europe-west1-c")),
		volume(gce(0), modes(v1.ReadOnlyMany, v1.ReadWriteOnce)),
		volume(cinder(), labels(zone, "nova")),
		volume(vsphere("gold"), labels(zone, "z1", region, "r1")),
		volume(vsphere(""), affinity([][]string{{oldZone, "z1"}, {oldRegion, "r1"}})),
		volume(azureFile("azure-storage-account-acct-secret", ptr("ns")), annotations("kubernetes.io/azure-file-resource-group", "group")),
		volume(azureFile("other", nil), claim("claims")),
		volume(azureFile("other", nil)),
		volume(azureDisk(nil, nil, nil, nil), labels(zone, "westeurope-1")),
		volume(azureDisk(ptr(v1.AzureManagedDisk), ptr(v1.AzureDataDiskCachingReadOnly), ptr("xfs"), ptr(true))),
		volume(azureDisk(ptr(v1.AzureSharedBlobDisk), nil, nil, nil)),
		volume(v1.PersistentVolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "px-1", FSType: "ext4", ReadOnly: true}},
			annotations("openstorage.io/auth-secret-name", "secret", "openstorage.io/auth-secret-namespace", "ns")),
		volume(v1.PersistentVolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "px-1"}},
			annotations("openstorage.io/auth-secret-name", "secret")),
		volume(v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/x"}}),
	} {
		output, err := translator.TranslateInTreePVToCSI(logger, pv)
		result.ToCSI = append(result.ToCSI, of(vector{Input: pv}, output, err))
	}

	for _, pv := range []*v1.PersistentVolume{
		volume(csi("ebs.csi.aws.com", "vol-1", map[string]string{"partition": "1"}),
			affinity([][]string{{"topology.ebs.csi.aws.com/zone", "us-east-1a", "us-east-1b"}})),
		volume(csi("ebs.csi.aws.com", "vol-1", map[string]string{"partition": "0"}),
			affinity([][]string{{"topology.ebs.csi.aws.com/zone", "us-west-2-lax-1a"}})),
		volume(csi("ebs.csi.aws.com", "vol-1", nil), affinity([][]string{{"topology.ebs.csi.aws.com/zone", "us-gov-east-1a"}})),
		volume(csi("ebs.csi.aws.com", "vol-1", nil), affinity([][]string{{"topology.ebs.csi.aws.com/zone", "us-east-1a", "us-west-2a"}})),
		volume(csi("ebs.csi.aws.com", "vol-1", nil), affinity([][]string{{"topology.ebs.csi.aws.com/zone", "nowhere"}})),
		volume(csi("ebs.csi.aws.com", "vol-1", map[string]string{"partition": "first"})),
		volume(csi("ebs.csi.aws.com", "vol-1", nil)),
		volume(csi("pd.csi.storage.gke.io", "projects/p/zones/us-central1-b/disks/disk-1", map[string]string{"partition": ""}),
			affinity([][]string{{"topology.gke.io/zone", "us-central1-b"}})),
		volume(csi("pd.csi.storage.gke.io", "projects/p/regions/us-central1/disks/disk-1", map[string]string{"partition": "2"}),
			affinity([][]string{{"topology.gke.io/zone", "us-central1-c", "us-central1-b"}}), labels(region, "kept")),
		volume(csi("pd.csi.storage.gke.io", "disk-1", nil)),
		volume(csi("cinder.csi.openstack.org", "cinder-1", nil), affinity([][]string{{"topology.cinder.csi.openstack.org/zone", "nova"}})),
		volume(csi("csi.vsphere.vmware.com", "id-1", map[string]string{"initialvolumefilepath": "[ds] a.vmdk"}),
			affinity([][]string{{"topology.csi.vmware.com/zone", "z2", "z1"}, {"topology.csi.vmware.com/region", "r1"}})),
		volume(csi("csi.vsphere.vmware.com", "id-1", nil), labels(oldZone, "z1")),
		volume(csi("disk.csi.azure.com", uri, map[string]string{"cachingMode": "ReadOnly", "FSTYPE": "xfs"})),
		volume(csi("disk.csi.azure.com", "https://account.blob/vhds/old.vhd", nil)),
		volume(csi("disk.csi.azure.com", "disk-1", nil)),
		volume(csi("file.csi.azure.com", "group#account#share#disk", nil)),
		volume(csi("file.csi.azure.com", "group#account", nil)),
		volume(csi("file.csi.azure.com", "any", map[string]string{"shareName": "s", "secretName": "n", "secretNamespace": "ns"})),
		volume(csi("pxd.portworx.com", "px-1", nil)),
		volume(csi("other.example.org", "x", nil)),
	} {
		output, err := translator.TranslateCSIPVToInTree(pv)
		result.ToInTree = append(result.ToInTree, of(vector{Input: pv}, output, err))
	}

	for _, source := range []v1.VolumeSource{
		{AWSElasticBlockStore: ebs("aws:///vol-1", 1).AWSElasticBlockStore},
		{GCEPersistentDisk: gce(0).GCEPersistentDisk},
		{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk-1", ReadOnly: true, Partition: 1}},
		{Cinder: &v1.CinderVolumeSource{VolumeID: "cinder-1", FSType: "ext4", ReadOnly: true}},
		{AzureDisk: azureDisk(nil, ptr(v1.AzureDataDiskCachingMode("")), ptr("ext4"), ptr(true)).AzureDisk},
		{AzureFile: &v1.AzureFileVolumeSource{SecretName: "azure-storage-account-acct-secret", ShareName: "share"}},
		{VsphereVolume: vsphere("").VsphereVolume},
		{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "px-1", FSType: "ext4", ReadOnly: true}},
		{EmptyDir: &v1.EmptyDirVolumeSource{}},
	} {
		for _, namespace := range []string{"ns", ""} {
			volume := &v1.Volume{Name: "data", VolumeSource: source}
			output, err := translator.TranslateInTreeInlineVolumeToCSI(logger, volume, namespace)
			result.Inline = append(result.Inline, of(vector{Input: volume, Namespace: namespace}, output, err))
		}
	}

	for _, v := range []vector{
		class("kubernetes.io/aws-ebs", map[string]string{"type": "io1", "iopsPerGB": "10", "fsType": "xfs"}),
		class("kubernetes.io/aws-ebs", map[string]string{"Zone": "us-east-1a"}),
		class("kubernetes.io/aws-ebs", map[string]string{"zones": "us-east-1a,us-east-1b"}),
		class("kubernetes.io/aws-ebs", map[string]string{"zones": "us-east-1a"}, allowed(zone, "us-east-1b")),
		class("kubernetes.io/aws-ebs", nil, allowed(oldZone, "us-east-1a"), allowed("other", "x")),
		class("kubernetes.io/gce-pd", map[string]string{"fstype": "ext4", "replication-type": "regional-pd"}, allowed(zone, "a")),
		class("kubernetes.io/gce-pd", map[string]string{"zone": "us-central1-b"}),
		class("kubernetes.io/azure-disk", map[string]string{"fstype": "xfs", "kind": "managed"}, allowed(zone, "0", "westus-1")),
		class("kubernetes.io/azure-disk", map[string]string{"zone": "12"}),
		class("kubernetes.io/azure-file", map[string]string{"skuName": "x", "zone": "y"}, allowed(zone, "a")),
		class("kubernetes.io/cinder", map[string]string{"fsType": "xfs", "availability": "nova"}, allowed(zone, "nova")),
		class("kubernetes.io/portworx-volume", map[string]string{"repl": "2", "openstorage.io/auth-secret-name": "s",
			"openstorage.io/auth-secret-namespace": "ns"}),
		class("kubernetes.io/portworx-volume", nil),
		class("kubernetes.io/vsphere-volume", map[string]string{"fstype": "ext4", "storagePolicyName": "gold", "datastore": "ds",
			"diskformat": "thin", "hostFailuresToTolerate": "1", "forceProvisioning": "1", "cacheReservation": "2",
			"diskStripes": "3", "objectSpaceReservation": "4", "iopsLimit": "5", "unknown": "x"}, allowed(zone, "z1")),
	} {
		output, err := translator.TranslateInTreeStorageClassToCSI(logger, v.Plugin, v.Input.(*storage.StorageClass))
		result.Classes = append(result.Classes, of(v, output, err))
	}

	const gceNode = "projects/p/zones/us-central1-b/instances/n"
	for _, v := range []vector{
		{Plugin: "pd.csi.storage.gke.io", Input: "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", Node: gceNode},
		{Plugin: "pd.csi.storage.gke.io", Input: "projects/UNSPECIFIED/zones/us-east1-c/disks/d", Node: gceNode},
		{Plugin: "pd.csi.storage.gke.io", Input: "projects/UNSPECIFIED/regions/UNSPECIFIED/disks/d", Node: gceNode},
		{Plugin: "pd.csi.storage.gke.io", Input: "projects/UNSPECIFIED/regions/us-east1/disks/d", Node: gceNode},
		{Plugin: "pd.csi.storage.gke.io", Input: "projects/q/zones/z/disks/d", Node: gceNode},
		{Plugin: "pd.csi.storage.gke.io", Input: "projects/UNSPECIFIED/planets/UNSPECIFIED/disks/d", Node: gceNode},
		{Plugin: "pd.csi.storage.gke.io", Input: "d", Node: gceNode},
		{Plugin: "pd.csi.storage.gke.io", Input: "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", Node: "n"},
		{Plugin: "ebs.csi.aws.com", Input: "vol-1", Node: "i-1"},
	} {
		output, err := translator.RepairVolumeHandle(v.Plugin, v.Input.(string), v.Node)
		result.Handles = append(result.Handles, of(v, output, err))
	}

	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(result); err != nil {
		panic(err)
	}
}

func of(v vector, output any, err error) vector {
	if err != nil {
		v.Refused = true
	} else {
		v.Output = output
	}
	return v
}
